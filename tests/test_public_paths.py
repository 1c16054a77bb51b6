"""Every public function takes a path as str or as Path."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitreous
from train_runs import skip_report
from vitreous.model.options import Gelu
from vitreous.serving import app
from vitreous.training import Distillation, TrainConfig

Kind = Callable[[Path], str | Path]
FEW = {"patch_size": 4, "width": 64, "mlp_width": 64, "depth": 1, "num_heads": 1, "mlp": Gelu("erf")}
SHORT = {"steps": 1, "batch_size": 4, "workers": 0, "device": "cpu"}


@pytest.fixture(params=[str, Path])
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with images in `data/` and a checkpoint in `model/`."""
    root, rng = tmp_path_factory.mktemp("paths"), np.random.default_rng(0)
    for name in ("a", "b"):
        (root / "data" / name).mkdir(parents=True)
        for i in range(5):
            Image.fromarray(rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(root / "data" / name / f"{i}.png")
    model = vitreous.create("ViT-Lite-6/4", num_classes=2, image_size=8, overrides={**FEW, "labels": ("a", "b")})
    vitreous.save(model, root / "model")
    return root


def test_save_load_and_convert(kind: Kind, root: Path, tmp_path: Path) -> None:
    model = vitreous.load(kind(root / "model"))
    vitreous.save(model, kind(tmp_path / "again"))
    vitreous.save(model, kind(tmp_path / "timm.pth"), format="timm", lossy=True)
    vitreous.convert(kind(tmp_path / "timm.pth"), kind(tmp_path / "huggingface"), to="huggingface")
    images = torch.rand(1, 3, 8, 8)
    for name in ("again", "timm.pth", "huggingface"):
        assert torch.allclose(vitreous.load(kind(tmp_path / name))(images), model(images), atol=1e-5)


def test_predict_embed_and_explain(kind: Kind, root: Path, tmp_path: Path) -> None:
    checkpoint, image = kind(root / "model"), kind(root / "data" / "a" / "0.png")
    assert len(list(vitreous.predict(checkpoint, [image, kind(root / "data" / "b")], device="cpu"))) == 6
    assert len(vitreous.embed(checkpoint, kind(root / "data"), device="cpu").array()[0]) == 10
    assert len(vitreous.Predictor(vitreous.load(checkpoint), device="cpu")(image)) == 1
    vitreous.explain(checkpoint, image, out=kind(tmp_path / "why"), methods=["rollout"], device="cpu")
    assert (tmp_path / "why" / "rollout.png").is_file()


def test_evaluate(kind: Kind, root: Path, tmp_path: Path) -> None:
    checkpoint = kind(root / "model")
    assert vitreous.evaluate(checkpoint, kind(root / "data"), device="cpu").count == 2
    found = vitreous.evaluate(
        checkpoint, kind(Path("data")), data_root=kind(root), probe="knn", neighbours=[2],
        cache=kind(tmp_path / "cache"), device="cpu",
    )  # fmt: skip
    assert found.count == 2
    assert any((tmp_path / "cache").iterdir())


def test_serve(kind: Kind, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served = []
    monkeypatch.setattr(app, "run_server", lambda names, *others: served.append(names))
    vitreous.serve(kind(root / "model"))
    vitreous.serve([kind(root / "model"), kind(root / "other")])
    assert [len(names) for names in served] == [1, 2]


def test_train(kind: Kind, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_report(monkeypatch)
    checkpoint = kind(root / "model")
    vitreous.train(data=kind(root / "data"), init=checkpoint, out=kind(tmp_path / "one"), **SHORT)
    teacher = Distillation(teacher=checkpoint)
    given = {"data": kind(Path("data")), "data_root": kind(root), "init": checkpoint, "out": kind(tmp_path / "two")}
    vitreous.train(TrainConfig(**given, **SHORT, image_size=(8,), distillation=teacher))
    run = vitreous.train(TrainConfig(out=kind(tmp_path / "two"), resume=True))
    assert run.folder == tmp_path / "two"
