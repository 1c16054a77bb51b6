"""MkDocs hook for translated pages: anchors of headings as on the English page, and titles of code blocks.

Links with an anchor then work in both languages, and while a page is not translated yet. Titles such as
"needs: a download" come from comments, which are the same in both languages (see site_hooks.py).
"""

import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page
from pymdownx.slugs import slugify

NEEDS = {
    "ImageNet and GPUs": "ImageNet 和 GPU",
    "Ray": "Ray",
    "a GPU and a download": "GPU 和下载",
    "a download": "下载",
    "a minute": "一分钟",
    "a running server": "正在运行的服务器",
    "a second terminal": "另一个终端",
    "real photos": "真实照片",
    "several GPUs": "多个 GPU",
    "several minutes": "几分钟",
    "the exported file": "导出的文件",
    "torchrun": "torchrun",
    "your table": "你的表格",
}


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
    return re.sub('(?<= title=")needs: ([^"]+)', lambda match: f"需要 {NEEDS[match[1]]}", "\n".join(lines))


def headings(lines: list[str]) -> Iterator[int]:
    """Yield the numbers of the lines with headings, which do not include comments in code."""
    code = False
    for number, line in enumerate(lines):
        code ^= line.startswith("```")
        if not code and re.match("#+ ", line):
            yield number
