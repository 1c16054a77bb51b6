"""MkDocs hooks for source code by name, and for equations as MathML, which needs no script.

A page names code by a link with a Python name as its anchor: `../../vitreous/model/block.py#Block.forward`. A link
that is a paragraph of its own becomes the source of that name. Other links lead to its lines.
"""

import ast
import html
import posixpath
import re
import textwrap
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
NAMED = r"\[([^\]]*)\]\(([^)\s:#]+\.py)#(?!L\d)([A-Za-z_][\w.]*)\)"
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


@event_priority(150)  # before site_hooks, which redirects links with line numbers
def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    folder = posixpath.join("docs", posixpath.dirname(page.file.src_uri))

    def found(match: re.Match[str]) -> tuple[str, int, int]:
        path = posixpath.normpath(posixpath.join(folder, match[2]))
        return path, *lines_of(path, match[3])

    def as_code(match: re.Match[str]) -> str:
        path, first, last = found(match)
        lines = (ROOT / path).read_text().splitlines()[first - 1 : last]
        code = textwrap.dedent("\n".join(lines))
        return f"```python\n{code}\n```\n\n[{path}, {first}-{last}]({match[2]}#L{first}-L{last})"

    def as_link(match: re.Match[str]) -> str:
        _, first, last = found(match)
        return f"[{match[1]}]({match[2]}#L{first}-L{last})"

    markdown = re.sub(f"^{NAMED}$", as_code, markdown, flags=re.MULTILINE)
    return re.sub(NAMED, as_link, markdown)


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    return FORMULA.sub(lambda match: as_mathml(html.unescape(match[2]), match[1] == "div"), content)


def as_mathml(formula: str, block: bool) -> str:
    return convert(formula.strip(), display="block" if block else "inline")


def lines_of(path: str, name: str) -> tuple[int, int]:
    """Return the first and the last line of a class, function, method or variable."""
    node: ast.AST = ast.parse((ROOT / path).read_text())
    for part in name.split("."):
        found = [child for child in ast.iter_child_nodes(node) if part in names_of(child)]
        if not found:
            raise ValueError(f"{path} does not define {name}")
        node = found[0]
    first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", []))])
    return first, node.end_lineno or first


def names_of(node: ast.AST) -> list[str]:
    match node:
        case ast.ClassDef() | ast.FunctionDef():
            return [node.name]
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
    return []
