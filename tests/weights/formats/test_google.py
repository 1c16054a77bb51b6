"""Google's `.npz` files, compared with timm models that read the same files."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import vitreous
from flax_arrays import Arrays, dense, saved, unknown
from google_models import CASES, HYBRIDS, NATIVE, OTHER, PLAIN, POSITION, arrays_of, config_of, timm_model
from parity import check_close, check_identical, noisy
from vitreous.model.build import build
from vitreous.model.options import (
    AttentionPool,
    ClassToken,
    Gelu,
    GlobalAverage,
    Learned1d,
    MlpHead,
    NoPosition,
    ResNetStem,
    SwiGlu,
    TanhHead,
)
from vitreous.model.vit import ViT
from vitreous.weights.convert import UnsupportedByFormat
from vitreous.weights.io.errors import BadCheckpoint


@pytest.mark.parametrize("case", CASES)
def test_outputs_equal_timm(tmp_path: Path, case: str) -> None:
    reference = timm_model(case)
    loaded = vitreous.load(saved(tmp_path / "foreign.npz", arrays_of(reference)))
    assert loaded.config == config_of(case)
    check_close(loaded, reference, loaded.config.image_size, channels=loaded.config.channels)


@pytest.mark.slow
@pytest.mark.parametrize("case", HYBRIDS)
def test_outputs_of_hybrids_equal_timm(tmp_path: Path, case: str) -> None:
    """timm's ResNet norms have a different eps, which is overridden here."""
    reference = timm_model(case)
    path = saved(tmp_path / "foreign.npz", arrays_of(reference))
    stem = HYBRIDS[case]["stem"]
    assert vitreous.load(path).config.stem == dataclasses.replace(stem, numerics="google")
    loaded = vitreous.load(path, overrides={"stem": stem})
    assert loaded.config == config_of(case)
    check_close(loaded, reference, loaded.config.image_size)


def test_positions_are_resampled_as_in_vit_jax(tmp_path: Path) -> None:
    """Resample to a rectangular grid with scipy's zoom and compare with timm's outputs."""
    zoom = pytest.importorskip("scipy.ndimage", reason="scipy is not installed: `make setup` installs it").zoom
    arrays = arrays_of(timm_model("class token"))
    loaded = vitreous.load(saved(tmp_path / "foreign.npz", arrays), image_size=OTHER)
    first, table = arrays[POSITION][:, :1], arrays[POSITION][0, 1:].reshape(4, 4, -1)
    places = zoom(table, (5 / 4, 3 / 4, 1), order=1).reshape(1, 15, -1)
    reference = timm_model("class token", img_size=OTHER)
    arrays[POSITION] = np.concatenate([first, places], axis=1)
    reference.load_pretrained(str(saved(tmp_path / "resampled.npz", arrays)))
    check_close(loaded, reference, OTHER)
    assert loaded.config.image_size == OTHER


def test_rectangular_grid_requires_image_size(tmp_path: Path) -> None:
    reference = timm_model("class token", img_size=OTHER)
    path = saved(tmp_path / "foreign.npz", arrays_of(reference))
    with pytest.raises(BadCheckpoint, match=r"15 positions.*native image size.* 8 x 8"):
        vitreous.load(path)
    check_close(vitreous.load(path, overrides={"image_size": OTHER}), reference, OTHER)


def test_pre_logits_layer_is_read(tmp_path: Path) -> None:
    """timm no longer has this layer, so it is applied to timm's features here."""
    reference = timm_model("no head")
    hidden, head = noisy(nn.Linear(48, 40)), noisy(nn.Linear(40, 5))
    extra = dense(hidden, "pre_logits") | dense(head, "head")
    path = saved(tmp_path / "foreign.npz", arrays_of(reference) | extra)
    loaded = vitreous.load(path)
    assert (loaded.config.head, loaded.config.num_classes) == (TanhHead(40), 5)
    check_close(loaded, lambda images: head(hidden(reference(images)).tanh()), NATIVE)


def test_one_block_equals_flax_in_numpy(tmp_path: Path) -> None:
    """Compare a one-layer encoder with a numpy version written from flax's documentation."""
    rng = np.random.default_rng(0)
    d, heads, head_dim, hidden = 24, 3, 8, 32
    block = "Transformer/encoderblock_0"
    attention, mlp = f"{block}/MultiHeadDotProductAttention_1", f"{block}/MlpBlock_3"
    shapes: dict[str, tuple[int, ...]] = {
        "embedding/kernel": (2, 2, 3, d), "embedding/bias": (d,), "cls": (1, 1, d), POSITION: (1, 5, d),
        f"{attention}/out/kernel": (heads, head_dim, d), f"{attention}/out/bias": (d,),
        f"{mlp}/Dense_0/kernel": (d, hidden), f"{mlp}/Dense_0/bias": (hidden,),
        f"{mlp}/Dense_1/kernel": (hidden, d), f"{mlp}/Dense_1/bias": (d,),
        "head/kernel": (d, 5), "head/bias": (5,),
    }  # fmt: skip
    for name in (f"{block}/LayerNorm_0", f"{block}/LayerNorm_2", "Transformer/encoder_norm"):
        shapes |= {f"{name}/scale": (d,), f"{name}/bias": (d,)}
    for part in ("query", "key", "value"):
        shapes |= {f"{attention}/{part}/kernel": (d, heads, head_dim), f"{attention}/{part}/bias": (heads, head_dim)}
    w = {name: rng.normal(size=shape) * 0.3 for name, shape in shapes.items()}

    def layer_norm(x: np.ndarray, name: str) -> np.ndarray:
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt(x.var(-1, keepdims=True) + 1e-6) * w[f"{name}/scale"] + w[f"{name}/bias"]

    def gelu(x: np.ndarray) -> np.ndarray:
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

    image = rng.normal(size=(4, 4, 3))
    patches = image.reshape(2, 2, 2, 2, 3).swapaxes(1, 2).reshape(4, 12)
    tokens = patches @ w["embedding/kernel"].reshape(12, d) + w["embedding/bias"]
    x = np.concatenate([w["cls"][0], tokens]) + w[POSITION][0]
    y = layer_norm(x, f"{block}/LayerNorm_0")
    q, k, v = (np.einsum("td,dhk->thk", y, w[f"{attention}/{part}/kernel"]) + w[f"{attention}/{part}/bias"]
               for part in ("query", "key", "value"))  # fmt: skip
    weights = np.exp(np.einsum("qhk,shk->hqs", q, k) / np.sqrt(head_dim))
    weights /= weights.sum(-1, keepdims=True)
    mixed = np.einsum("hqs,shk->qhk", weights, v)
    x = x + np.einsum("thk,hkd->td", mixed, w[f"{attention}/out/kernel"]) + w[f"{attention}/out/bias"]
    y = layer_norm(x, f"{block}/LayerNorm_2")
    y = gelu(y @ w[f"{mlp}/Dense_0/kernel"] + w[f"{mlp}/Dense_0/bias"])
    x = x + y @ w[f"{mlp}/Dense_1/kernel"] + w[f"{mlp}/Dense_1/bias"]
    expected = layer_norm(x, "Transformer/encoder_norm")[0] @ w["head/kernel"] + w["head/bias"]

    loaded = vitreous.load(saved(tmp_path / "foreign.npz", w))
    with torch.no_grad():
        found = loaded(torch.from_numpy(image).permute(2, 0, 1)[None])
    assert found.dtype == torch.float64
    assert np.abs(found[0].numpy() - expected).max() < 1e-12


@pytest.fixture
def model() -> ViT:
    stem = {"stem": ResNetStem((1,), 32), "patch_size": (2, 2)}
    return noisy(build(dataclasses.replace(PLAIN, **stem)))  # type: ignore[return-value]


@pytest.fixture
def arrays(tmp_path: Path, model: ViT) -> Arrays:
    vitreous.save(model, tmp_path / "model.npz", format="google")
    with np.load(tmp_path / "model.npz") as file:
        return dict(file)


def test_optimizer_state_is_ignored(tmp_path: Path, model: ViT, arrays: Arrays) -> None:
    rooted = {f"opt/target/{name}": array for name, array in arrays.items()}
    check_identical(vitreous.load(saved(tmp_path / "a.npz", rooted)), model)
    state = {"opt/state/step": np.zeros((), np.int32), "opt/state/param_states/cls/momentum": np.zeros(3, np.float32)}
    loaded = vitreous.load(saved(tmp_path / "b.npz", rooted | state))
    check_identical(loaded, model)
    assert vars(loaded)["provenance"]["left_out"] == list(state)


def test_text_model_is_ignored(tmp_path: Path, model: ViT, arrays: Arrays) -> None:
    """LiT names the image model `img`."""
    towers = {f"img/{name}": array for name, array in arrays.items()} | {"txt/head/bias": np.zeros(3), "t": np.zeros(1)}
    check_identical(vitreous.load(saved(tmp_path / "lit.npz", towers)), model)


def test_names_of_newer_flax_are_read(tmp_path: Path, model: ViT, arrays: Arrays) -> None:
    """Layers are numbered per kind, and GroupNorm vectors have one dimension."""
    newer = {}
    for name, array in arrays.items():
        for old, new in (("LayerNorm_2", "LayerNorm_1"), ("Attention_1", "Attention_0"), ("MlpBlock_3", "MlpBlock_0")):
            name = name.replace(old, new)
        newer[name] = array.reshape(-1) if "gn" in name else array
    assert newer.keys() != arrays.keys()
    check_identical(vitreous.load(saved(tmp_path / "newer.npz", newer)), model)


def test_provenance_lists_assumed_fields(tmp_path: Path, arrays: Arrays) -> None:
    provenance = vars(vitreous.load(saved(tmp_path / "foreign.npz", arrays)))["provenance"]
    assert provenance["origin"] == "Google's vision_transformer"
    assumed = {line.split(":")[0] for line in provenance["assumed"]}
    assert assumed == {"image_size", "norm_eps", "mlp", "preprocessing"}


def test_unknown_arrays_are_rejected(tmp_path: Path) -> None:
    mixer = {"stem/kernel": np.zeros((16, 16, 3, 8), "f4"), "MixerBlock_0/LayerNorm_0/scale": np.zeros(8, "f4")}
    with pytest.raises(BadCheckpoint, match=r"mixer.npz has an unknown format \(tensors: stem/kernel"):
        vitreous.load(saved(tmp_path / "mixer.npz", mixer))


@pytest.mark.slow
@pytest.mark.parametrize("case", [*CASES, *HYBRIDS, "R50"])
def test_timm_reads_written_files(tmp_path: Path, case: str) -> None:
    config = config_of(case)
    model = noisy(build(config))
    vitreous.save(model, tmp_path / "saved.npz", format="google", lossy=config.stem is not None)
    reference = unknown(timm_model(case))
    reference.load_pretrained(str(tmp_path / "saved.npz"))
    check_close(model, reference, config.image_size, channels=config.channels)


@pytest.mark.slow
@pytest.mark.parametrize("case", [*CASES, *HYBRIDS])
def test_written_names_and_shapes_match_google(tmp_path: Path, case: str) -> None:
    """The written arrays are exactly those of a manually built file."""
    expected = {name: array.shape for name, array in arrays_of(timm_model(case)).items()}
    vitreous.save(build(config_of(case)), tmp_path / "saved.npz", format="google", lossy=case in HYBRIDS)
    with np.load(tmp_path / "saved.npz") as file:
        assert {name: file[name].shape for name in file.files} == expected


ROUND_TRIPS: dict[str, dict[str, Any]] = {
    **{case: changes for case, (changes, _) in CASES.items()},
    "hybrid": {"stem": ResNetStem((1, 2), 32), "patch_size": (1, 1)},
    "root of a hybrid": {"stem": ResNetStem((), 32), "patch_size": (2, 2)},
    "pre-logits": {"head": TanhHead(40)},
    "pre-logits, no head": {"head": TanhHead(40), "num_classes": 0},
}


@pytest.mark.slow
@pytest.mark.parametrize("case", ROUND_TRIPS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_round_trip_is_bit_identical(tmp_path: Path, case: str, dtype: torch.dtype) -> None:
    model = noisy(build(dataclasses.replace(PLAIN, **ROUND_TRIPS[case]))).to(dtype)
    assert isinstance(model, ViT)
    vitreous.save(model, tmp_path / "model.npz", format="google")
    check_identical(vitreous.load(tmp_path / "model.npz"), model)


UNSUPPORTED: dict[str, tuple[dict[str, Any], str]] = {
    "position": ({"position": NoPosition()}, ".*positions, got NoPosition"),
    "entry": ({"position": Learned1d(prefix_entries=False)}, ".*a position for the class token"),
    "pool": ({"class_token": False, "pool": AttentionPool()}, r".*got AttentionPool\(\)"),
    "norm after the mean": ({"class_token": False, "pool": GlobalAverage("after")}, r".*got GlobalAverage.*after"),
    "average with a class token": ({"pool": GlobalAverage("before")}, r".*with a class token, got GlobalAverage"),
    "registers": ({"registers": 2}, "registers"),
    "distillation": ({"distillation_token": True, "pool": ClassToken()}, "distillation_token"),
    "LayerScale": ({"layer_scale": 0.1}, "layer_scale"),
    "SwiGLU": ({"mlp": SwiGlu()}, "SwiGLU"),
    "head": ({"head": MlpHead(8)}, "MlpHead"),
    "qk_norm": ({"qk_norm": True}, "qk_norm"),
    "qkv_bias": ({"qkv_bias": False}, ".*requires qkv_bias"),
    "head_dim": ({"head_dim": 16}, ".*head_dim.*got 16"),
    "qk_scale": ({"qk_scale": 0.5}, ".*qk_scale.*got 0.5"),
    "pad": ({"pad": True}, "pad"),
    "patch_norm": ({"patch_norm": True, "patch_method": "linear"}, "patch_norm"),
}


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_unsupported_parts_are_rejected_by_name(tmp_path: Path, case: str) -> None:
    changes, part = UNSUPPORTED[case]
    with pytest.raises(UnsupportedByFormat, match=f"Google's vision_transformer does not support this model: {part}"):
        vitreous.save(build(dataclasses.replace(PLAIN, **changes)), tmp_path / "m.npz", format="google", lossy=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"norm_eps": 1e-5}, "eps is 1e-05"),
        ({"mlp": Gelu("erf")}, "GELU is computed with erf"),
        ({"stem": ResNetStem((1,), 32, "timm"), "patch_size": (2, 2)}, "epsilons of timm"),
    ],
)
def test_other_numerics_require_lossy(tmp_path: Path, changes: dict[str, Any], part: str) -> None:
    model = build(dataclasses.replace(PLAIN, **changes))
    with pytest.raises(UnsupportedByFormat, match=part):
        vitreous.save(model, tmp_path / "model.npz", format="google")
    vitreous.save(model, tmp_path / "model.npz", format="google", lossy=True)
    field = next(iter(changes))
    check_identical(vitreous.load(tmp_path / "model.npz", overrides={field: changes[field]}), model)


@pytest.mark.parametrize("name", ["model.safetensors", "model"])
def test_other_suffixes_than_npz_are_rejected(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"must end in it|\.npz"):
        vitreous.save(build(PLAIN), tmp_path / name, format="google")
    assert not list(tmp_path.iterdir())
