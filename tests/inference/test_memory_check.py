"""Models that do not fit the memory are rejected before they run."""

from pathlib import Path

import pytest
import torch

from vitreous.common import device as capacity
from vitreous.explanation.explain_image import open_backbone
from vitreous.inference.predictor import Predictor
from vitreous.model.build import build_vit
from vitreous.model.options import NoPosition
from vitreous.model.presets import configure
from vitreous.weights.load import save


def limit(monkeypatch: pytest.MonkeyPatch, folder: Path, content: str) -> None:
    (folder / "memory.max").write_text(content)
    monkeypatch.setattr(capacity, "LIMITS", (str(folder / "none"), str(folder / "memory.max")))


def test_the_memory_limit_of_a_container_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cpu = torch.device("cpu")
    limit(monkeypatch, tmp_path, "max\n")
    machine = capacity.total_memory(cpu)
    for content, memory in (("1000000\n", 1_000_000), (f"{2 * machine}\n", machine)):
        limit(monkeypatch, tmp_path, content)
        assert capacity.total_memory(cpu) == memory
        assert capacity.free_memory("cpu") <= memory


def test_models_too_large_for_the_machine_are_rejected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An image of 2304 x 2304 pixels takes 64 MB, and the attention of its 20,737 tokens 1.7 GB a head."""
    limit(monkeypatch, tmp_path, "1000000000\n")
    model = build_vit(configure("ViT-Ti/16", 3, 2304, {"position": NoPosition(), "depth": 1}))
    Predictor(model, device="cpu")
    save(model, tmp_path / "model")
    with pytest.raises(
        ValueError, match=r"2304 x 2304 pixels, and the attention of one layer needs about 5\.2 GB.* has 1\.0 GB"
    ):
        open_backbone(tmp_path / "model", (), "cpu")
    limit(monkeypatch, tmp_path, "100000000\n")
    with pytest.raises(ValueError, match=r"2304 x 2304 pixels, and one image needs about 0\.\d GB .* 0\.1 GB"):
        Predictor(model, device="cpu")
