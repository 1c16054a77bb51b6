"""DINOv2 files, compared with transformers and timm models."""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import vitreous
from optional_imports import import_timm, import_transformers
from parity import check_close, check_identical, noisy
from vitreous.model.build import build
from vitreous.model.config import ViTConfig
from vitreous.model.options import IMAGENET, AttentionPool, Conditional, Gelu, Learned1d, ResNetStem, SwiGlu, TanhHead
from vitreous.model.vit import ViT
from vitreous.weights.convert import UnsupportedByFormat

NATIVE, OTHER = (56, 56), (42, 70)
CONFIG = ViTConfig(
    image_size=NATIVE,
    patch_size=(14, 14),
    width=128,
    depth=4,
    num_heads=2,
    mlp_width=256,
    mlp=Gelu("erf"),
    layer_scale=1e-5,
    position=Learned1d(interpolation="dinov2"),
    num_classes=0,
    preprocessing=IMAGENET,
)
CASES = {
    "plain": CONFIG,
    "registers": dataclasses.replace(CONFIG, registers=3, position=Learned1d(interpolation="dinov2-registers")),
    "SwiGLU": dataclasses.replace(CONFIG, mlp=SwiGlu(), mlp_width=176),
}

# transformers' tensor names and DINOv2's.
NAMES = [
    (r"embeddings\.patch_embeddings\.projection", "patch_embed.proj"),
    (r"embeddings\.position_embeddings", "pos_embed"),
    (r"embeddings\.", ""),
    (r"encoder\.layer\.", "blocks."),
    (r"attention\.o_proj", "attn.proj"),
    (r"layer_scale(\d)\.lambda1", r"ls\1.gamma"),
    (r"mlp\.down_proj", "mlp.w3"),
    (r"layernorm", "norm"),
]


def reference_model(case: str) -> nn.Module:
    transformers = import_transformers()
    config = CASES[case]
    sizes = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 2, "mlp_ratio": 2}
    sizes |= {"image_size": 56, "patch_size": 14, "use_swiglu_ffn": config.mlp == SwiGlu()}
    if config.registers:
        sizes["num_register_tokens"] = 3
        return noisy(transformers.Dinov2WithRegistersModel(transformers.Dinov2WithRegistersConfig(**sizes)))
    return noisy(transformers.Dinov2Model(transformers.Dinov2Config(**sizes)))


def as_dinov2(model: nn.Module) -> dict[str, Tensor]:
    """Convert the tensors of a transformers model to DINOv2's names and packing."""
    state = dict(model.state_dict())
    result = {}
    for name in list(state):
        packed = {"q_proj": ("q_proj", "k_proj", "v_proj"), "gate_proj": ("gate_proj", "up_proj")}
        for first, parts in packed.items():
            if first in name:
                whole = torch.cat([state.pop(name.replace(first, part)) for part in parts])
                where = "attn.qkv" if first == "q_proj" else "mlp.w12"
                result[name.replace(f"attention.{first}", where).replace(f"mlp.{first}", where)] = whole
    result |= state
    for transformers_name, dinov2 in NAMES:
        result = {re.sub(transformers_name, dinov2, name): tensor for name, tensor in result.items()}
    return result


def tokens(model: ViT) -> Callable[[Tensor], Tensor]:
    """Return all tokens in transformers' order: class token, registers, patches."""
    return lambda images: torch.cat(model.features(images)[:2], dim=1)


def last(model: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda images: model(images).last_hidden_state


# ---- Reading and writing ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_reads_and_writes_dinov2_files(case: str, tmp_path: Path) -> None:
    model = reference_model(case)
    file = as_dinov2(model)
    torch.save(file, tmp_path / "foreign.pth")
    loaded = vitreous.load(tmp_path / "foreign.pth")
    assert isinstance(loaded, ViT)
    assert loaded.config == CASES[case]
    assert loaded.provenance["left_out"] == ["mask_token"]
    check_close(tokens(loaded), last(model), NATIVE)
    for suffix in (".pth", ".safetensors"):
        vitreous.save(loaded, tmp_path / f"saved{suffix}", format="dinov2")
        check_identical(vitreous.load(tmp_path / f"saved{suffix}"), loaded)
    written = torch.load(tmp_path / "saved.pth")
    assert sorted(written) == sorted(file)
    for name, tensor in written.items():
        assert torch.equal(tensor, file[name] if name != "mask_token" else torch.zeros(1, 128)), name


@pytest.mark.parametrize("case", CASES)
def test_timm_reads_written_files(case: str, tmp_path: Path) -> None:
    """timm converts DINOv2 files and requires every key."""
    model = build(CASES[case])
    noisy(model)
    vitreous.save(model, tmp_path / "m.pth", format="dinov2")
    name = {"registers": "vit_small_patch14_reg4_dinov2", "SwiGLU": "vit_giant_patch14_dinov2"}
    given = {"img_size": 56, "embed_dim": 128, "depth": 4, "num_heads": 2, "mlp_ratio": 2.0}
    given |= {"SwiGLU": {"mlp_ratio": 2.75}, "registers": {"reg_tokens": 3}}.get(case, {})
    given["pretrained_cfg_overlay"] = {"file": str(tmp_path / "m.pth"), "num_classes": 0}
    filled = import_timm().create_model(name.get(case, "vit_small_patch14_dinov2"), pretrained=True, **given).eval()
    check_close(filled.forward_features, tokens(model), NATIVE)


def test_positions_with_registers_are_resampled_antialiased(tmp_path: Path) -> None:
    model = reference_model("registers")
    torch.save(as_dinov2(model), tmp_path / "m.pth")
    check_close(tokens(vitreous.load(tmp_path / "m.pth")), last(model), OTHER, (84, 28))
    check_close(tokens(vitreous.load(tmp_path / "m.pth", image_size=OTHER)), last(model), OTHER)


def test_positions_without_registers_are_resampled_with_offset(tmp_path: Path) -> None:
    """DINOv2 resamples with an offset of a tenth of a patch; transformers does not."""
    model = reference_model("plain")
    torch.save(as_dinov2(model), tmp_path / "m.pth")
    places = model.embeddings.position_embeddings.detach()

    def resampled(embeddings: Tensor, height: int, width: int) -> Tensor:
        grid = (height // 14, width // 14)
        scale = ((grid[0] + 0.1) / 4, (grid[1] + 0.1) / 4)
        sample_image = places[:, 1:].reshape(1, 4, 4, 128).permute(0, 3, 1, 2)
        sample_image = F.interpolate(sample_image, scale_factor=scale, mode="bicubic")
        assert tuple(sample_image.shape[2:]) == grid
        return torch.cat([places[:, :1], sample_image.flatten(2).transpose(1, 2)], dim=1)

    model.embeddings.interpolate_pos_encoding = resampled
    check_close(tokens(vitreous.load(tmp_path / "m.pth")), last(model), OTHER, (84, 28))


# ---- Training checkpoints --------------------------------------------------------------------------------------------


def test_chunked_blocks_are_read(tmp_path: Path) -> None:
    model = reference_model("plain")
    chunked = {re.sub(r"^blocks\.(\d+)", lambda m: f"blocks.{int(m[1]) // 2}.{m[1]}", name): tensor
               for name, tensor in as_dinov2(model).items()}  # fmt: skip
    assert "blocks.1.3.norm1.weight" in chunked
    torch.save(chunked, tmp_path / "m.pth")
    check_close(tokens(vitreous.load(tmp_path / "m.pth")), last(model), NATIVE)


@pytest.mark.parametrize("heads", [True, False], ids=["with heads", "alone"])
def test_teacher_checkpoint_is_read_without_heads(heads: bool, tmp_path: Path) -> None:
    model = reference_model("registers")
    teacher = {f"backbone.{name}": tensor for name, tensor in as_dinov2(model).items()}
    if heads:
        teacher |= {"dino_head.mlp.0.weight": torch.zeros(2, 2), "ibot_head.last_layer.weight_g": torch.zeros(2, 1)}
    torch.save({"teacher": teacher, "iteration": 5}, tmp_path / "teacher_checkpoint.pth")
    loaded = vitreous.load(tmp_path / "teacher_checkpoint.pth")
    check_close(tokens(loaded), last(model), NATIVE)
    assert len(loaded.provenance["left_out"]) == (3 if heads else 1)


# ---- Unsupported models ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"num_classes": 3}, "classifier"),
        ({"head": TanhHead(8)}, "head of two layers"),
        ({"image_size": (56, 70)}, "square images, got 56 x 70"),
        ({"patch_size": (14, 28)}, "square patches, got 14 x 28"),
        ({"pad": True, "image_size": (50, 50)}, "pad"),
        ({"stem": ResNetStem((), 32)}, "stem"),
        ({"distillation_token": True}, "distillation_token"),
        ({"qk_norm": True}, "qk_norm"),
        ({"qk_scale": 0.5}, "qk_scale"),
        ({"head_dim": 16}, "head_dim"),
        ({"patch_norm": True, "patch_method": "linear"}, "patch_norm"),
        ({"pool": AttentionPool()}, "pooling, got AttentionPool"),
        ({"position": Conditional()}, "positions, got Conditional"),
        ({"position": Learned1d(False)}, "a position for the class token"),
        ({"mlp": SwiGlu(), "mlp_width": 100}, "mlp_width .*SwiGLU, got 100"),
    ],
    ids=str,
)
def test_unsupported_parts_are_rejected_by_name(changes: dict[str, Any], part: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedByFormat, match=f"DINOv2 does not support this model: .*{part}"):
        vitreous.save(build(dataclasses.replace(CONFIG, **changes)), tmp_path / "m.pth", format="dinov2")


@pytest.mark.parametrize("changes", [{"norm_eps": 1e-5}, {"mlp": Gelu("tanh")}], ids=str)
def test_other_numerics_require_lossy(changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UnsupportedByFormat, match="would give different outputs"):
        vitreous.save(build(dataclasses.replace(CONFIG, **changes)), tmp_path / "m.pth", format="dinov2")
