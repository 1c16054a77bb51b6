"""The documentation site builds without warnings, has no dead links, and loads nothing from other hosts."""

import json
import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import vitreous
from vitreous.cli.main import COMMANDS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "video": "src"}


class Page(HTMLParser):
    """Collects the anchors of a page, its links, and the files that it loads."""

    def __init__(self, path: Path):
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if values.get(LOADED.get(tag, "")) and values.get("rel") != "canonical":
            self.loads.append(values[LOADED[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    settings = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=settings, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr  # a warning is an error
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in site.rglob("*.html") if path.name != "404.html"}


def test_every_page_exists_in_both_languages(site: Path, pages: dict[Path, Page]) -> None:
    names = {path.relative_to(site) for path in pages}
    chinese = {name.relative_to("zh") for name in names if name.parts[0] == "zh"}
    assert chinese == {name for name in names if name.parts[0] != "zh"}
    assert {Path("index.html"), Path("reference/api.html")} < chinese


def test_every_link_leads_to_a_page_and_an_anchor(site: Path, pages: dict[Path, Page]) -> None:
    dead = []
    for path, page in pages.items():
        for link in [*page.links, *page.loads]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            anchors = pages[target].anchors if target in pages else set()
            if not target.is_file() or (parts.fragment and unquote(parts.fragment) not in anchors):
                dead.append(f"{path.relative_to(site)}: {link}")
    assert not dead, "\n".join(sorted(set(dead)))


def test_the_site_loads_nothing_from_other_hosts(pages: dict[Path, Page]) -> None:
    assert not {load for page in pages.values() for load in page.loads if urlsplit(load).netloc}


def test_the_search_finds_both_languages(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text())
    assert set(index["config"]["lang"]) == {"en", "zh"}
    assert any(entry["location"].startswith("zh/") for entry in index["docs"])
    assert not any("source/" in entry["location"] for entry in index["docs"])


def test_titles_of_code_are_translated(site: Path) -> None:
    assert "needs: a download" in (site / "index.html").read_text()
    chinese = (site / "zh" / "index.html").read_text()
    assert "需要 下载" in chinese
    assert "needs: " not in chinese


def test_the_reference_has_every_public_name_and_command(pages: dict[Path, Page], site: Path) -> None:
    assert {f"vitreous.{name}" for name in vitreous.__all__} <= pages[site / "reference" / "api.html"].anchors
    assert {f"vitreous-{name}" for name in COMMANDS} <= pages[site / "reference" / "cli.html"].anchors
