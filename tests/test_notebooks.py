"""The notebooks in docs/notebooks run from the first to the last cell, and are committed without outputs."""

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

NOTEBOOKS = sorted((Path(__file__).parents[1] / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run all cells in this process, because a Jupyter kernel takes seconds to import torch."""
    inputs = pytest.importorskip("IPython.core.inputtransformer2")
    cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert "google.colab" in "".join(cells[0]["source"])
    assert not any(cell["outputs"] for cell in cells)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    namespace: dict[str, object] = {}
    for cell in cells:
        source = inputs.TransformerManager().transform_cell("".join(cell["source"]))  # %pip becomes a function call
        exec(compile(source, str(path), "exec"), namespace)
