"""The pages about the paper name existing code, have small figures, and are the same in both languages."""

import re
from pathlib import Path

import pytest

pytest.importorskip("latex2mathml")
paper_hooks = pytest.importorskip("docs.paper_hooks")

ROOT = Path(__file__).parent.parent
ENGLISH = sorted(ROOT.glob("docs/en/paper/*.md"))
PARTS = {
    "code": r"^```.*?^```$",
    "equations": r"^\$\$$.*?^\$\$$",
    "names": r"\]\(([^)\s:#]+\.py#[A-Za-z_][\w.]*)\)",
    "figures": r"^!\[[^\]]+\]\(([^)]+)\)$",
    "headings": r"^#+ ",
    "tables": r"^\|",
    "solutions": r"^<details markdown=\"1\">$",
}


def parts(path: Path, kind: str) -> list[str]:
    return re.findall(PARTS[kind], path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("path", ENGLISH, ids=lambda path: path.stem)
def test_named_code_exists(path: Path) -> None:
    for name in parts(path, "names"):
        file, _, name = name.partition("#")
        inside = (path.parent / file).resolve().relative_to(ROOT).as_posix()
        first, last = paper_hooks.lines_of(inside, name)
        assert 0 < first <= last


@pytest.mark.parametrize("path", ENGLISH, ids=lambda path: path.stem)
def test_a_page_is_the_same_in_chinese(path: Path) -> None:
    chinese = ROOT / "docs" / "zh" / "paper" / path.name
    for kind in ("code", "equations", "names", "figures"):
        assert parts(chinese, kind) == parts(path, kind), kind
    assert [len(mark) for mark in parts(chinese, "headings")] == [len(mark) for mark in parts(path, "headings")]
    assert len(parts(chinese, "solutions")) == len(parts(path, "solutions"))


@pytest.mark.parametrize("path", [page for page in ENGLISH if page.stem != "index"], ids=lambda path: path.stem)
def test_a_page_has_code_a_figure_and_a_solved_exercise(path: Path) -> None:
    figures = [path.parent / figure for figure in parts(path, "figures")]
    assert parts(path, "names")
    assert figures
    assert all(figure.stat().st_size < 60_000 for figure in figures)
    assert "```python" in path.read_text().partition("<summary>Solution</summary>")[2]


def test_every_figure_is_drawn_by_the_script_and_shown() -> None:
    drawn = re.findall(r'save\(\s*"([\w-]+)"', (ROOT / "docs" / "draw_paper_figures.py").read_text())
    shown = {Path(figure).stem for page in ENGLISH for figure in parts(page, "figures")}
    assert sorted(drawn) == sorted(shown) == sorted(path.stem for path in ROOT.glob("docs/images/paper/*"))


def test_a_name_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"block\.py does not define Block\.missing"):
        paper_hooks.lines_of("vitreous/model/block.py", "Block.missing")


@pytest.mark.parametrize("path", ENGLISH, ids=lambda path: path.stem)
def test_equations_become_mathml(path: Path) -> None:
    for equation in parts(path, "equations"):
        mathml = paper_hooks.as_mathml(equation.strip("$"), block=True)
        assert mathml.startswith("<math")
        assert "\\" not in mathml  # an unknown command would stay as text
