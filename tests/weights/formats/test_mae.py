"""MAE files, compared with transformers' ViTMAE and, for fine-tuned models, with timm."""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import vitreous
from optional_imports import import_timm, import_transformers
from parity import check_close, check_identical, noisy
from vitreous.model.build import build
from vitreous.model.config import ViTConfig
from vitreous.model.options import (
    IMAGENET,
    ClassToken,
    Gelu,
    GlobalAverage,
    Learned1d,
    ResNetStem,
    SinCos2d,
    SwiGlu,
    TanhHead,
)
from vitreous.model.vit import ViT
from vitreous.weights.convert import UnsupportedByFormat

NATIVE, OTHER = (32, 32), (40, 24)
CONFIG = ViTConfig(
    image_size=NATIVE,
    patch_size=(8, 8),
    width=128,
    depth=2,
    num_heads=2,
    mlp_width=256,
    mlp=Gelu("erf"),
    position=Learned1d(interpolation="huggingface"),
    num_classes=0,
    preprocessing=IMAGENET,
)

# transformers' tensor names and MAE's.
NAMES = [
    (r"^vit\.", ""),
    (r"^decoder\.(decoder_)?layers\.", "decoder_blocks."),
    (r"^decoder\.", ""),
    (r"embeddings\.patch_embeddings\.projection", "patch_embed.proj"),
    (r"embeddings\.position_embeddings", "pos_embed"),
    (r"embeddings\.", ""),
    (r"^layers\.", "blocks."),
    (r"attention\.o_proj", "attn.proj"),
    (r"layernorm_before", "norm1"),
    (r"layernorm_after", "norm2"),
    (r"^layernorm", "norm"),
]


def reference_model() -> nn.Module:
    transformers = import_transformers()
    sizes = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 256}
    sizes |= {"decoder_hidden_size": 32, "decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 1}
    sizes |= {"decoder_intermediate_size": 64, "image_size": 32, "patch_size": 8}
    config = transformers.ViTMAEConfig(**sizes, layer_norm_eps=1e-6, mask_ratio=0.0)
    return transformers.ViTMAEForPreTraining(config)


def as_mae(model: nn.Module) -> dict[str, Tensor]:
    """Convert the tensors of a transformers model to MAE's names and packing."""
    state = dict(model.state_dict())
    result = {}
    for name in [name for name in state if "q_proj" in name]:
        packed = torch.cat([state.pop(name.replace("q_proj", part)) for part in ("q_proj", "k_proj", "v_proj")])
        result[name.replace("attention.q_proj", "attn.qkv")] = packed
    result |= state
    for old, new in NAMES:
        result = {re.sub(old, new, name): tensor for name, tensor in result.items()}
    return result


def encoder(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in state.items() if "decoder" not in name and name != "mask_token"}


def last(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """Run the encoder with noise that masks and shuffles nothing."""

    def run(images: Tensor) -> Tensor:
        patches = images.shape[2] * images.shape[3] // 64
        noise = torch.arange(patches).expand(len(images), -1)
        return model.vit(images, noise=noise, interpolate_pos_encoding=True).last_hidden_state

    return run


def tokens(model: ViT) -> Callable[[Tensor], Tensor]:
    return lambda images: torch.cat(model.features(images)[:2], dim=1)


def sines_and_cosines(side: int, width: int) -> Tensor:
    """Compute MAE's positions, columns first, in double precision."""
    turns = 10_000.0 ** -(np.arange(width // 4) / (width / 4))
    rows, columns = (np.outer(places, turns) for places in np.mgrid[:side, :side].reshape(2, -1))
    table = np.concatenate([np.sin(columns), np.cos(columns), np.sin(rows), np.cos(rows)], axis=1)
    return torch.from_numpy(np.concatenate([np.zeros((1, width)), table])).float()[None]


def fine_tuned(pool: str, **options: Any) -> nn.Module:
    kind = import_timm().models.vision_transformer.VisionTransformer
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 128, "depth": 2, "num_heads": 2, "mlp_ratio": 2.0}
    return noisy(kind(**sizes, num_classes=7, global_pool=pool, **options))


# ---- Pre-trained -----------------------------------------------------------------------------------------------------


def test_decoder_is_ignored(tmp_path: Path) -> None:
    model = noisy(reference_model())
    state = as_mae(model)
    assert {"mask_token", "decoder_pos_embed", "decoder_blocks.0.attn.qkv.weight", "decoder_pred.bias"} < set(state)
    torch.save({"model": state, "epoch": 799}, tmp_path / "mae.pth")
    loaded = vitreous.load(tmp_path / "mae.pth")
    assert isinstance(loaded, ViT)
    assert loaded.config == CONFIG
    assert set(loaded.provenance["left_out"]) == set(state) - set(encoder(state))
    check_close(tokens(loaded), last(model), NATIVE, OTHER)
    check_close(tokens(vitreous.load(tmp_path / "mae.pth", image_size=OTHER)), last(model), OTHER)


@pytest.mark.slow
def test_encoder_alone_is_detected_by_its_positions(tmp_path: Path) -> None:
    """MAE publishes encoders without a decoder. Their sines and cosines are read bit-identically as a table."""
    model = noisy(reference_model())
    model.vit.embeddings.position_embeddings.data = sines_and_cosines(4, 128)
    state = encoder(as_mae(model))
    torch.save({"model": state}, tmp_path / "mae.pth")
    loaded = vitreous.load(tmp_path / "mae.pth")
    assert loaded.config == CONFIG
    check_close(tokens(loaded), last(model), NATIVE, OTHER)
    for suffix in (".pth", ".safetensors"):
        vitreous.save(loaded, tmp_path / f"saved{suffix}", format="mae")
        check_identical(vitreous.load(tmp_path / f"saved{suffix}"), loaded)
    written = torch.load(tmp_path / "saved.pth")["model"]
    assert sorted(written) == sorted(state)
    assert all(torch.equal(written[name], tensor) for name, tensor in state.items())


def test_learned_positions_are_not_detected_as_mae(tmp_path: Path) -> None:
    """MAE's class token has a zero position, which training changes."""
    model = noisy(reference_model())
    state = encoder(as_mae(model)) | {"pos_embed": sines_and_cosines(4, 128)}
    state["pos_embed"][0, 0, 5] += 0.01
    torch.save({"model": state}, tmp_path / "other.pth")
    assert vitreous.load(tmp_path / "other.pth").provenance["format"] == "timm"
    state["pos_embed"][0, 0] = 0
    torch.save({"model": state}, tmp_path / "mae.pth")
    assert vitreous.load(tmp_path / "mae.pth").provenance["format"] == "mae"


@pytest.mark.parametrize("pool", ["avg", "token"])
def test_mae_can_fine_tune_written_files(pool: str, tmp_path: Path) -> None:
    """MAE's script accepts only a missing head and, for mean pooling, a missing norm."""
    model = build(CONFIG)
    noisy(model)
    vitreous.save(model, tmp_path / "m.pth", format="mae")
    filled = fine_tuned(pool)
    missing, unexpected = filled.load_state_dict(torch.load(tmp_path / "m.pth")["model"], strict=False)
    norm = {"fc_norm.weight", "fc_norm.bias"} if pool == "avg" else set()
    assert set(missing) == {"head.weight", "head.bias"} | norm
    assert set(unexpected) == ({"norm.weight", "norm.bias"} if pool == "avg" else set())
    if pool == "token":
        check_close(filled.forward_features, tokens(model), NATIVE)


# ---- Fine-tuned ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["avg", "token"])
def test_reads_and_writes_fine_tuned_models(pool: str, tmp_path: Path) -> None:
    model = fine_tuned(pool)
    torch.save({"model": model.state_dict(), "epoch": 99}, tmp_path / "foreign.pth")
    loaded = vitreous.load(tmp_path / "foreign.pth", format="mae")
    kind = GlobalAverage("after") if pool == "avg" else ClassToken()
    assert loaded.config == dataclasses.replace(CONFIG, num_classes=7, pool=kind)
    check_close(loaded, model, NATIVE)
    vitreous.save(loaded, tmp_path / "saved.pth", format="mae")
    filled = fine_tuned(pool)
    filled.load_state_dict(torch.load(tmp_path / "saved.pth")["model"], strict=True)
    check_close(filled, loaded, NATIVE)
    check_identical(vitreous.load(tmp_path / "saved.pth", format="mae"), loaded)


def test_class_token_without_position_is_read(tmp_path: Path) -> None:
    """Such a file is read with format="mae" but cannot be written."""
    model = fine_tuned("token", no_embed_class=True)
    torch.save({"model": model.state_dict()}, tmp_path / "foreign.pth")
    loaded = vitreous.load(tmp_path / "foreign.pth", format="mae")
    assert loaded.config.position == Learned1d(False, "huggingface")
    check_close(loaded, model, NATIVE)


def test_images_above_224_pixels_are_not_cropped(tmp_path: Path) -> None:
    model = build(dataclasses.replace(CONFIG, image_size=(448, 448), patch_size=(112, 112)))
    vitreous.save(model, tmp_path / "m.pth", format="mae")
    again = vitreous.load(tmp_path / "m.pth", format="mae")
    assert again.config.preprocessing == dataclasses.replace(IMAGENET, crop_fraction=1.0)


# ---- Unsupported models ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"stem": ResNetStem((), 32)}, "stem"),
        ({"distillation_token": True}, "distillation_token"),
        ({"registers": 1}, "registers"),
        ({"qk_norm": True}, "qk_norm"),
        ({"layer_scale": 0.1}, "layer_scale"),
        ({"qkv_bias": False}, "requires qkv_bias"),
        ({"head_dim": 16}, "head_dim"),
        ({"mlp": SwiGlu()}, "SwiGLU"),
        ({"head": TanhHead(8)}, "head of two layers"),
        ({"class_token": False, "pool": GlobalAverage("after")}, "requires a class token"),
        ({"pool": GlobalAverage("before")}, "pooling, got GlobalAverage"),
        ({"position": SinCos2d()}, "positions, got SinCos2d"),
        ({"position": Learned1d(False)}, "a position for the class token"),
        ({"patch_norm": True, "patch_method": "linear"}, "patch_norm"),
        ({"pad": True, "image_size": (30, 32)}, "pad"),
    ],
    ids=str,
)
def test_unsupported_parts_are_rejected_by_name(changes: dict[str, Any], part: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedByFormat, match=f"MAE does not support this model: .*{part}"):
        vitreous.save(build(dataclasses.replace(CONFIG, **changes)), tmp_path / "m.pth", format="mae")


@pytest.mark.parametrize("changes", [{"norm_eps": 1e-5}, {"mlp": Gelu("tanh")}], ids=str)
def test_other_numerics_require_lossy(changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UnsupportedByFormat, match="would give different outputs"):
        vitreous.save(build(dataclasses.replace(CONFIG, **changes)), tmp_path / "m.pth", format="mae")
