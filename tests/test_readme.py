"""What the documents show is what the code does: their Python is run, and their commands exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = [
    path for path in [*ROOT.glob("README*.md"), *(ROOT / "docs").glob("*.md")] if "```python" in path.read_text()
]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_python_examples_run(path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)
    namespace: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(path), "exec"), namespace)
    assert blocks


@pytest.mark.parametrize("path", sorted(ROOT.glob("README*.md")), ids=lambda path: path.name)
def test_links_and_pictures_exist(path: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)\)|src=\"([^\"]+)\"", path.read_text())
    missing = [target for pair in targets for target in pair if target and not (ROOT / target).exists()]
    assert not missing


def test_the_chinese_readme_has_the_same_code() -> None:
    blocks = [
        re.findall(r"```(?:python|bash|sh)\n(.*?)```", path.read_text(), re.DOTALL) for path in ROOT.glob("README*.md")
    ]
    without_comments = [[re.sub(r"\s*#.*", "", block) for block in document] for document in blocks]
    assert len(blocks) == 2
    assert without_comments[0] == without_comments[1]
