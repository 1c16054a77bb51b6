"""The Python examples in the documentation run, and its links are valid."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = [
    path for path in [*ROOT.glob("README*.md"), *ROOT.glob("docs/en/**/*.md")] if "```python" in path.read_text()
]


@pytest.mark.slow
@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_python_examples_run(path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)
    namespace: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(path), "exec"), namespace)
    assert blocks


@pytest.mark.parametrize("path", [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")], ids=lambda path: path.name)
def test_links_lead_to_files_and_headings(path: Path) -> None:
    for target in re.findall(r"\]\(([^):]+)\)", path.read_text()):
        name, _, heading = target.partition("#")
        file = path.parent / name if name else path
        if not file.exists():  # the site shows a page without a translation in English
            file = Path(str(file).replace("/docs/zh/", "/docs/en/"))
        assert file.exists(), target
        titles = re.findall(r"^#+ (.*)", file.read_text(), re.MULTILINE) if heading else []
        anchors = [re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles]
        assert not heading or heading in anchors, target


def test_the_chinese_readme_has_the_same_code() -> None:
    blocks = [
        re.findall(r"```(?:python|bash|sh)\n(.*?)```", path.read_text(), re.DOTALL) for path in ROOT.glob("README*.md")
    ]
    without_comments = [[re.sub(r"\s*#.*", "", block) for block in document] for document in blocks]
    assert len(blocks) == 2
    assert without_comments[0] == without_comments[1]
