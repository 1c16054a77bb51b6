"""All variants of big_vision's `.npz` files, compared with timm models that read the same files."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitreous
from flax_arrays import Arrays, flax_arrays, saved, unknown
from optional_imports import import_timm
from parity import check_close, check_identical, noisy
from vitreous.model.build import build
from vitreous.model.config import ViTConfig
from vitreous.model.options import (
    SIGLIP,
    AttentionPool,
    ClassToken,
    Gelu,
    GlobalAverage,
    Learned1d,
    Preprocessing,
    ResNetStem,
    SinCos2d,
    SwiGlu,
    TanhHead,
)
from vitreous.model.vit import ViT
from vitreous.weights.convert import UnsupportedByFormat
from vitreous.weights.io.errors import BadCheckpoint

NATIVE, OTHER = (32, 32), (40, 24)
BLOCKS = "Transformer/encoderblock"
CROP = Preprocessing(crop_fraction=0.875, interpolation="bilinear")
NO_ENTRY = Learned1d(prefix_entries=False)
AVERAGE = ViTConfig(
    image_size=NATIVE,
    patch_size=(8, 8),
    width=48,  # not a multiple of 64, so the heads come from the tensors
    depth=3,
    num_heads=4,
    mlp_width=96,
    num_classes=7,
    class_token=False,
    pool=GlobalAverage("before"),
    preprocessing=CROP,
)

# Changes to AVERAGE, and the equivalent timm arguments.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "average": ({}, {"class_token": False, "global_pool": "avg", "fc_norm": False}),
    "class token": (
        {"class_token": True, "pool": ClassToken(), "position": NO_ENTRY},
        {"no_embed_class": True},
    ),
    "class token with a position": ({"class_token": True, "pool": ClassToken()}, {}),
    "MAP": ({"pool": AttentionPool()}, {"class_token": False, "global_pool": "map"}),
    "MAP, no head": (
        {"pool": AttentionPool(), "num_classes": 0, "preprocessing": SIGLIP},
        {"class_token": False, "global_pool": "map", "num_classes": 0},
    ),
}


def config_of(case: str) -> ViTConfig:
    return dataclasses.replace(AVERAGE, **CASES[case][0])


def timm_model(case: str, **more: Any) -> Any:
    sizes = {"img_size": NATIVE, "patch_size": 8, "embed_dim": 48, "depth": 3, "num_heads": 4, "mlp_ratio": 2}
    numerics = {"num_classes": 7, "act_layer": "gelu_tanh"}
    vit = import_timm().models.vision_transformer.VisionTransformer
    return noisy(vit(**sizes | numerics | CASES[case][1] | more))


def arrays_of(model: Any, root: str = "params/") -> Arrays:
    arrays = flax_arrays(model, "pos_embedding", attention=0, mlp_norm=1, mlp=0)
    return {f"{root}{name}": array for name, array in arrays.items()}


def stacked(arrays: Arrays) -> Arrays:
    """Stack the arrays of all layers, as in models that scan over layers."""
    result = {}
    for name, array in arrays.items():
        if f"{BLOCKS}_0/" in name:
            layers = [arrays[name.replace("_0/", f"_{i}/", 1)] for i in range(AVERAGE.depth)]
            result[name.replace("_0/", "/", 1)] = np.stack(layers)
        elif f"{BLOCKS}_" not in name:
            result[name] = array
    return result


# ---- Both directions -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("form", ["apart", "stacked"])
def test_outputs_equal_timm(tmp_path: Path, case: str, form: str) -> None:
    reference = timm_model(case)
    arrays = arrays_of(reference)
    loaded = vitreous.load(saved(tmp_path / "foreign.npz", stacked(arrays) if form == "stacked" else arrays))
    assert loaded.config == config_of(case)
    check_close(loaded, reference, NATIVE)


@pytest.mark.parametrize("case", CASES)
def test_timm_reads_written_files(tmp_path: Path, case: str) -> None:
    model = noisy(build(config_of(case)))
    vitreous.save(model, tmp_path / "saved.npz", format="big_vision")
    reference = unknown(timm_model(case))
    reference.load_pretrained(str(tmp_path / "saved.npz"))
    check_close(model, reference, NATIVE)


@pytest.mark.parametrize("case", CASES)
def test_written_names_and_shapes_match_big_vision(tmp_path: Path, case: str) -> None:
    expected = {name: array.shape for name, array in arrays_of(timm_model(case)).items()}
    vitreous.save(build(config_of(case)), tmp_path / "saved.npz", format="big_vision")
    with np.load(tmp_path / "saved.npz") as file:
        assert {name: file[name].shape for name in file.files} == expected


def test_rectangular_grid_requires_image_size(tmp_path: Path) -> None:
    reference = timm_model("MAP", img_size=OTHER)
    path = saved(tmp_path / "foreign.npz", arrays_of(reference))
    with pytest.raises(BadCheckpoint, match=r"15 positions.*native image size"):
        vitreous.load(path)
    check_close(vitreous.load(path, overrides={"image_size": OTHER}), reference, OTHER)


def test_positions_are_resampled_as_in_big_vision(tmp_path: Path) -> None:
    """Resample to a rectangular grid with scipy's zoom and compare with timm's outputs."""
    zoom = pytest.importorskip("scipy.ndimage", reason="scipy is not installed: `make setup` installs it").zoom
    arrays = arrays_of(timm_model("class token"))
    loaded = vitreous.load(saved(tmp_path / "foreign.npz", arrays), image_size=OTHER)
    table = arrays["params/pos_embedding"].reshape(4, 4, -1)
    reference = timm_model("class token", img_size=OTHER)
    arrays["params/pos_embedding"] = zoom(table, (5 / 4, 3 / 4, 1), order=1).reshape(1, 15, -1)
    reference.load_pretrained(str(saved(tmp_path / "resampled.npz", arrays)))
    check_close(loaded, reference, OTHER)


def test_missing_positions_are_sines_and_cosines(tmp_path: Path) -> None:
    """For a file without positions, timm gets big_vision's sines and cosines as a learned table."""
    arrays = arrays_of(timm_model("average"))
    y, x = np.mgrid[:5, :3]
    omega = 1 / 10_000 ** (np.arange(12) / 11)
    x, y = np.outer(x.flatten(), omega), np.outer(y.flatten(), omega)
    computed = np.concatenate([np.sin(x), np.cos(x), np.sin(y), np.cos(y)], axis=1)[None].astype(np.float32)
    reference = timm_model("average", img_size=OTHER)
    reference.load_pretrained(str(saved(tmp_path / "computed.npz", arrays | {"params/pos_embedding": computed})))

    arrays.pop("params/pos_embedding")
    path = saved(tmp_path / "foreign.npz", arrays)
    loaded = vitreous.load(path)
    assert loaded.config.position == SinCos2d("big_vision")
    assert loaded.config.image_size == (224, 224)
    assert "there are no learned positions" in "".join(vars(loaded)["provenance"]["assumed"])
    check_close(loaded, reference, OTHER)
    assert vitreous.load(path, image_size=OTHER).config.image_size == OTHER
    assert vitreous.load(path, overrides={"image_size": OTHER}).config.image_size == OTHER


ROUND_TRIPS: dict[str, dict[str, Any]] = {
    **{case: changes for case, (changes, _) in CASES.items()},
    "sines and cosines": {"position": SinCos2d("big_vision"), "image_size": (224, 224)},
    "pre-logits": {"head": TanhHead(40)},
    "pre-logits, no head": {"head": TanhHead(40), "num_classes": 0},
    "non-square patches": {"patch_size": (8, 4), "image_size": (32, 16), "channels": 1},
}


@pytest.mark.slow
@pytest.mark.parametrize("case", ROUND_TRIPS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_round_trip_is_bit_identical(tmp_path: Path, case: str, dtype: torch.dtype) -> None:
    model = noisy(build(dataclasses.replace(AVERAGE, **ROUND_TRIPS[case]))).to(dtype)
    assert isinstance(model, ViT)
    vitreous.save(model, tmp_path / "model.npz", format="big_vision")
    check_identical(vitreous.load(tmp_path / "model.npz"), model)


TOKEN = {"class_token": True, "pool": ClassToken()}
UNSUPPORTED: dict[str, tuple[dict[str, Any], str]] = {
    "position": ({"position": SinCos2d("mae")}, ".*got SinCos2d.*mae"),
    "temperature": ({"position": SinCos2d("big_vision", 100.0)}, ".*got SinCos2d.*100"),
    "entry, not square": ({**TOKEN, "image_size": (32, 16)}, ".*square number of patches.*got 8"),
    "a square and one": ({"image_size": (16, 40)}, ".*first of 10 positions.*9 is a square"),
    "stem": ({"stem": ResNetStem((1,), 32), "patch_size": (2, 2)}, "stem"),
    "norm after the mean": ({"pool": GlobalAverage("after")}, r".*got GlobalAverage.*after"),
    "MAP with a class token": (
        {"class_token": True, "pool": AttentionPool()},
        r".*class token, got AttentionPool",
    ),
    "SwiGLU": ({"mlp": SwiGlu()}, "SwiGLU"),
    "qkv_bias": ({"qkv_bias": False}, ".*requires qkv_bias"),
}


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_unsupported_parts_are_rejected_by_name(tmp_path: Path, case: str) -> None:
    changes, part = UNSUPPORTED[case]
    with pytest.raises(UnsupportedByFormat, match=f"big_vision does not support this model: {part}"):
        vitreous.save(build(dataclasses.replace(AVERAGE, **changes)), tmp_path / "m.npz", "big_vision", lossy=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("changes", [{"norm_eps": 1e-5}, {"mlp": Gelu("erf")}])
def test_other_numerics_require_lossy(tmp_path: Path, changes: dict[str, Any]) -> None:
    model = build(dataclasses.replace(AVERAGE, **changes))
    with pytest.raises(UnsupportedByFormat, match=r"big_vision would give different outputs"):
        vitreous.save(model, tmp_path / "model.npz", format="big_vision")
    vitreous.save(model, tmp_path / "model.npz", format="big_vision", lossy=True)
    check_identical(vitreous.load(tmp_path / "model.npz", overrides=changes), model)


# ---- Older and newer files -------------------------------------------------------------------------------------------


@pytest.fixture
def model() -> ViT:
    return noisy(build(config_of("MAP")))  # type: ignore[return-value]


@pytest.fixture
def arrays(tmp_path: Path, model: ViT) -> Arrays:
    """Arrays without a root key."""
    vitreous.save(model, tmp_path / "model.npz", format="big_vision")
    with np.load(tmp_path / "model.npz") as file:
        return {name.removeprefix("params/"): array for name, array in file.items()}


@pytest.mark.slow
@pytest.mark.parametrize("root", ["", "opt/target/", "params/", "params/img/", "img/"])
@pytest.mark.parametrize("form", ["apart", "stacked"])
def test_any_root_key_is_read(tmp_path: Path, model: ViT, arrays: Arrays, root: str, form: str) -> None:
    arrays = stacked(arrays) if form == "stacked" else arrays
    rooted = {f"{root}{name}": array for name, array in arrays.items()}
    check_identical(vitreous.load(saved(tmp_path / "foreign.npz", rooted)), model)


def test_text_model_is_ignored(tmp_path: Path, model: ViT, arrays: Arrays) -> None:
    """SigLIP files also contain a text model and the temperature and bias of the logits."""
    text = {
        "txt/Encoder_0/encoder_norm/scale": np.zeros(4),
        "txt/head/bias": np.zeros(3),
        "t": np.ones(1),
        "b": np.ones(1),
    }
    towers = {f"img/{name}": array for name, array in arrays.items()} | text
    for root in ("", "params/"):
        file = saved(tmp_path / "siglip.npz", {f"{root}{name}": array for name, array in towers.items()})
        loaded = vitreous.load(file)
        check_identical(loaded, model)
        assert vars(loaded)["provenance"]["left_out"] == list(text)


def test_optimizer_state_is_ignored(tmp_path: Path, model: ViT, arrays: Arrays) -> None:
    rest = {"opt/0/count": np.zeros((), np.int32), "opt/0/mu/cls": np.zeros(2, np.float32), "chrono/time": np.zeros(())}
    trained = {f"params/{name}": array for name, array in arrays.items()} | rest
    loaded = vitreous.load(saved(tmp_path / "trained.npz", trained))
    check_identical(loaded, model)
    assert vars(loaded)["provenance"]["left_out"] == list(rest)


def test_names_of_older_versions_are_read(tmp_path: Path, model: ViT, arrays: Arrays) -> None:
    """Test positions in the encoder, MAP without a layer name, and layers numbered across a block."""
    older = {}
    for name, array in arrays.items():
        name = "Transformer/pos_embedding" if name == "pos_embedding" else name.removeprefix("MAPHead_0/")
        if name.startswith(BLOCKS):
            for new, old in (("Norm_1", "Norm_2"), ("Attention_0", "Attention_1"), ("MlpBlock_0", "MlpBlock_3")):
                name = name.replace(new, old)
        older[name] = array
    assert len(older) == len(arrays)
    check_identical(vitreous.load(saved(tmp_path / "older.npz", older)), model)


def test_bfloat16_positions_are_read(tmp_path: Path, model: ViT, arrays: Arrays) -> None:
    """numpy reads bfloat16 positions as two bytes of unknown type."""
    table = model.position.table.detach().bfloat16()
    arrays["pos_embedding"] = table.reshape(1, 16, 48).view(torch.int16).numpy().view("V2")
    loaded = vitreous.load(saved(tmp_path / "foreign.npz", arrays))
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.float32}
    assert torch.equal(loaded.position.table, table.float())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("MAPHead_0/LayerNorm_0/scale"), "1 missing: MAPHead_0/LayerNorm_0/scale"),
        (lambda w: w.update({"MAPHead_1/probe": w["MAPHead_0/probe"]}), "1 unexpected: MAPHead_1/probe"),
        (lambda w: w.update({"head/bias": w["head/bias"][:3]}), r"head/bias is \[3\], expected \[7\]"),
        (lambda w: w.update({"embedding/kernel": np.zeros((192, 48))}), "embedding/kernel must have 4 "),
        (
            lambda w: w.update({f"{BLOCKS}/LayerNorm_0/scale": np.zeros((9999, 1), "f4")}),
            r"LayerNorm_0/scale must be the depth .*1024.*\[9999, 1\]",
        ),
        (
            lambda w: w.update({f"{BLOCKS}/LayerNorm_0/bias": w[f"{BLOCKS}/LayerNorm_0/bias"][:2]}),
            "1 missing: Transformer/encoderblock_2/LayerNorm_0/bias",
        ),
    ],
)
def test_wrong_tensors_are_rejected_in_one_line(tmp_path: Path, arrays: Arrays, change: Any, message: str) -> None:
    arrays = stacked(arrays)
    change(arrays)
    with pytest.raises(BadCheckpoint, match=message) as error:
        vitreous.load(saved(tmp_path / "bad.npz", arrays))
    assert "bad.npz" in str(error.value)
    assert "\n" not in str(error.value)
