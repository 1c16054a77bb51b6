"""MkDocs hooks: pages made from other files of the repository, and links to them.

A page links to a file outside docs/ as on GitHub, e.g. `../../vitreous/model/vit.py#L30-L42`. On the site, such a link
leads to a page with the source of that file.
"""

import argparse
import html
import json
import logging
import posixpath
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import jieba
import tyro
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

from vitreous.benchmarking.comparison_output import markdown_table
from vitreous.cli.main import COMMANDS, PLAIN

jieba.setLogLevel(logging.WARNING)
ROOT = Path(__file__).parent.parent
NEEDS = re.compile(r"^( *)<!-- needs: ([\w ,]+) -->\n *```(\w+)$", re.MULTILINE)
MEASURED = re.compile(r"^<!-- bench: ([\w. ]+) -->$", re.MULTILINE)  # files of `vitreous bench`
LINK = re.compile(r"(?<=\]\()([^)\s:#]+)(#[^)\s]*)?(?=\))")
PUBLISHED = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md", "README.md": "index.md"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Replace a pattern in the navigation by the pages that match it. Show a menu of versions if mike is running."""
    if "mike" in config.plugins:
        config.extra["version"] = {"provider": "mike"}
    for entry in list(config.nav or []):
        for title, pattern in entry.items():
            if isinstance(pattern, str) and "*" in pattern:
                english = Path(config.docs_dir) / "en"
                pages = sorted(english.glob(pattern), key=lambda path: (path.name != "index.md", path.name))
                entry[title] = [path.relative_to(english).as_posix() for path in pages]
                if not pages:
                    config.nav.remove(entry)
    return config


@event_priority(-200)  # after the i18n plugin, which rebuilds all files from their paths
def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for every source file that a page links to."""
    language = config.plugins["i18n"].current_language
    linked = {
        path
        for page in files.documentation_pages()
        for path, _, _ in outside_links(page.src_uri, text_of(page, config))
    }
    for path in sorted(linked - set(PUBLISHED)):
        file = File.generated(config, source_page(path), content=as_page(path), inclusion=InclusionLevel.NOT_IN_NAV)
        if language != "en":
            file.dest_uri = f"{language}/{file.dest_uri}"
        files.append(file)
    return files


@event_priority(100)
def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill generated pages and redirect links to files outside docs/."""
    here = page.file.src_uri
    if here.startswith("source/"):
        return markdown
    name = here.split("/", 1)[1]
    markdown = text_of(page.file, config) if name in ("contributing.md", "changelog.md") else markdown
    if name == "reference/cli.md":
        markdown = command_reference()
    markdown = MEASURED.sub(lambda match: measured_table(match[1].split(), here.split("/")[0]), markdown)
    for path, anchor, whole in set(outside_links(here, markdown)):
        target = f"en/{PUBLISHED[path]}" if path in PUBLISHED else source_page(path)
        if line := re.fullmatch(r"#L(\d+)(-L\d+)?", anchor):
            # MkDocs does not know the anchors of code lines and would warn about a Markdown link.
            url = relative(target.removesuffix(".md"), name) + f".html#__codelineno-0-{line[1]}"
            markdown = re.sub(rf"\[([^\]]*)\]\({re.escape(whole)}\)", rf'<a href="{url}">\1</a>', markdown)
        markdown = markdown.replace(f"]({whole})", f"]({relative(target, here)}{anchor})")
    return NEEDS.sub(r'\1```\3 title="needs: \2"', markdown)


# ---- Links to files outside docs/ ------------------------------------------------------------------------------------


def text_of(file: File, config: MkDocsConfig) -> str:
    """Return the Markdown of a page. Pages made from a file in the root get links relative to docs/en."""
    for original, published in PUBLISHED.items():
        if file.src_uri.endswith(f"/{published}") and published != "index.md":
            text = (ROOT / original).read_text()
            return re.sub(r"\]\(docs/en/", "](", re.sub(r"\]\((?!docs/|http|#)", "](../../", text))
    return file.content_string


def outside_links(page: str, markdown: str) -> Iterator[tuple[str, str, str]]:
    """Yield (path in the repository, anchor, whole link) for links to files that are not part of the site."""
    for match in LINK.finditer(markdown):
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), match[1]))
        published = path.startswith("docs/") and not path.endswith(".py")
        if not published and (ROOT / path).is_file():  # MkDocs reports missing files
            yield path, match[2] or "", match[0]


def source_page(path: str) -> str:
    return f"source/{path}.md"


def relative(target: str, page: str) -> str:
    return posixpath.relpath(target, posixpath.dirname(page))


def as_page(path: str) -> str:
    """Return a page with the source of a file, hidden from the search."""
    language = {".py": "python", ".yaml": "yaml", ".js": "js", ".sbatch": "bash"}.get(Path(path).suffix, "text")
    text = (ROOT / path).read_text().rstrip()
    return f"---\nsearch:\n  exclude: true\n---\n\n# {path}\n\n``````{language} linenums='1'\n{text}\n``````\n"


# ---- Measurements ----------------------------------------------------------------------------------------------------

HEADINGS = {"en": ("Model", "Measurement", "Precision", "Batch"), "zh": ("模型", "测量", "精度", "批次")}


def measured_table(names: list[str], language: str) -> str:
    """Return the table of files that `vitreous bench` wrote."""
    records = [json.loads((ROOT / "docs/measurements" / name).read_text()) for name in names]
    return markdown_table(records, HEADINGS[language])


# ---- Command reference -----------------------------------------------------------------------------------------------


def command_reference() -> str:
    """Return a page with the description and arguments of every command, from its parser."""
    parts = ["# Command line", "`vitreous COMMAND --help` prints the same. Flags marked `*` take several values."]
    for name, command in COMMANDS.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # tyro offers no other access to its parser
            parser = tyro.extras.get_parser(command, prog=f"vitreous {name}", config=PLAIN)
        description, _, example = (parser.description or "").partition("Example: ")
        parts += [f"## vitreous {name}", description.strip()]
        parts += [f"```bash\n{example.strip()}\n```"] if example else []
        for group in parser._action_groups:
            rows = [row for action in group._group_actions if (row := argument_row(action))]
            title = group.title or ""
            if rows:
                parts.append("\n".join([f"| {title.capitalize()} | |", "|---|---|", *rows]))
    return "\n\n".join(parts)


def argument_row(action: argparse.Action) -> str:
    if action.dest == "help" or action.help == argparse.SUPPRESS:
        return ""
    value = " ".join(action.metavar) if isinstance(action.metavar, tuple) else action.metavar or ""
    several = "`*`" if action.nargs in ("*", "+") and action.option_strings else ""
    text = html.escape(" ".join((action.help or "").split()), quote=False).replace("|", "&#124;")
    name = ", ".join(action.option_strings) or action.dest
    shown = f"{name} {value}".strip() if action.option_strings else value or name
    code = html.escape(shown, quote=False).replace("|", "&#124;")
    return f"| <code>{code}</code> {several} | {text} |"
