"""MkDocs hook that gives the headings of a translated page the anchors of the English page.

Links with an anchor then work in both languages, and while a page is not translated yet.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page
from pymdownx.slugs import slugify


@event_priority(50)
def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    language, _, name = page.file.src_uri.partition("/")
    english = Path(config.docs_dir) / "en" / name
    if language != "zh" or not english.exists():
        return markdown
    lines, originals = markdown.split("\n"), english.read_text().split("\n")
    for line, original in zip(headings(lines), headings(originals), strict=False):
        title = re.sub(r"^#+ |`|\]\([^)]*\)|\[", "", originals[original])
        lines[line] += f" {{ #{slugify(case='lower')(title, '-')} }}"
    return "\n".join(lines)


def headings(lines: list[str]) -> Iterator[int]:
    """Yield the numbers of the lines with headings, which do not include comments in code."""
    code = False
    for number, line in enumerate(lines):
        code ^= line.startswith("```")
        if not code and re.match("#+ ", line):
            yield number
