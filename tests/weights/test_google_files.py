"""Google's `.npz` of all ages, with what else was saved in them."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import vitreous
from flax_arrays import Arrays, saved
from google_models import PLAIN
from parity import check_identical, noisy
from vitreous.model.build import build
from vitreous.model.options import ResNetStem
from vitreous.model.vit import ViT
from vitreous.weights.io.errors import BadCheckpoint


@pytest.fixture
def model() -> ViT:
    stem = {"stem": ResNetStem((1,), 32), "patch_size": (2, 2)}
    return noisy(build(dataclasses.replace(PLAIN, **stem)))  # type: ignore[return-value]


@pytest.fixture
def arrays(tmp_path: Path, model: ViT) -> Arrays:
    vitreous.save(model, tmp_path / "model.npz", format="google")
    with np.load(tmp_path / "model.npz") as file:
        return dict(file)


def test_beside_an_optimizers_state(tmp_path: Path, model: ViT, arrays: Arrays) -> None:
    rooted = {f"opt/target/{name}": array for name, array in arrays.items()}
    check_identical(vitreous.load(saved(tmp_path / "a.npz", rooted)), model)
    state = {"opt/state/step": np.zeros((), np.int32), "opt/state/param_states/cls/momentum": np.zeros(3, np.float32)}
    loaded = vitreous.load(saved(tmp_path / "b.npz", rooted | state))
    check_identical(loaded, model)
    assert vars(loaded)["provenance"]["left_out"] == list(state)


def test_beside_a_text_model(tmp_path: Path, model: ViT, arrays: Arrays) -> None:
    """LiT: the image's model is called img."""
    towers = {f"img/{name}": array for name, array in arrays.items()} | {"txt/head/bias": np.zeros(3), "t": np.zeros(1)}
    check_identical(vitreous.load(saved(tmp_path / "lit.npz", towers)), model)


def test_what_a_newer_flax_saves(tmp_path: Path, model: ViT, arrays: Arrays) -> None:
    """Layers are counted by kind, and GroupNorm's vectors are vectors."""
    newer = {}
    for name, array in arrays.items():
        for old, new in (("LayerNorm_2", "LayerNorm_1"), ("Attention_1", "Attention_0"), ("MlpBlock_3", "MlpBlock_0")):
            name = name.replace(old, new)
        newer[name] = array.reshape(-1) if "gn" in name else array
    assert newer.keys() != arrays.keys()
    check_identical(vitreous.load(saved(tmp_path / "newer.npz", newer)), model)


def test_says_what_it_took_for_granted(tmp_path: Path, arrays: Arrays) -> None:
    provenance = vars(vitreous.load(saved(tmp_path / "theirs.npz", arrays)))["provenance"]
    assert provenance["origin"] == "Google's vision_transformer"
    said = {line.split(":")[0] for line in provenance["assumed"]}
    assert said == {"image_size", "norm_eps", "mlp", "preprocessing"}


def test_arrays_of_something_else(tmp_path: Path) -> None:
    mixer = {"stem/kernel": np.zeros((16, 16, 3, 8), "f4"), "MixerBlock_0/LayerNorm_0/scale": np.zeros(8, "f4")}
    with pytest.raises(BadCheckpoint, match=r"mixer.npz is of no known format; its 2 tensors are called stem/kernel"):
        vitreous.load(saved(tmp_path / "mixer.npz", mixer))
