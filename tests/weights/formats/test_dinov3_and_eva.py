"""Files of facebookresearch/dinov3 and baaivision/EVA, which timm's converter for these files also reads."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import vitreous
from optional_imports import import_timm
from parity import check_close, check_identical, noisy
from vitreous.model.options import CLIP, Learned1d, Rotary2d
from vitreous.weights.io.errors import BadCheckpoint, UnsupportedByFormat

SMALL = {"width": 64, "depth": 2, "num_heads": 2, "mlp_width": 96}
NATIVE, OTHER = (64, 64), (48, 96)
# preset, timm architecture with the same layers, and its arguments
DINOV3 = {
    "S": ("DINOv3-S/16", "vit_small_patch16_dinov3_qkvb", {"mlp_ratio": 1.5}),
    "S+": ("DINOv3-S+/16", "vit_small_plus_patch16_dinov3_qkvb", {"mlp_ratio": 1.5}),
    "7B": ("DINOv3-7B/16", "vit_7b_patch16_dinov3", {"mlp_ratio": 1.5, "swiglu_align_to": 8}),
}
EVA = {
    "Ti": ("EVA02-Ti/14", "eva02_tiny_patch14_224", {"mlp_ratio": 1.5, "num_classes": 7}),
    "B": ("EVA02-B/14", "eva02_base_patch14_224", {"mlp_ratio": 1.5, "num_classes": 7}),
}
SIZES = {"img_size": 64, "patch_size": 16, "embed_dim": 64, "depth": 2, "num_heads": 2}


def small(preset: str, **more: Any) -> Any:
    classes = None if preset.startswith("DINOv3") else 7
    overrides = SMALL | {"patch_size": (16, 16)} | more
    return noisy(vitreous.create(preset, classes, NATIVE, overrides))


def read_by_timm(tensors: dict[str, Tensor], architecture: str, arguments: dict[str, Any]) -> nn.Module:
    model = import_timm().create_model(architecture, **SIZES | arguments)
    with contextlib.redirect_stdout(None):
        tensors = import_timm().models.eva.checkpoint_filter_fn(tensors, model)
    model.load_state_dict(tensors)
    return model.eval()


@pytest.mark.parametrize("size", DINOV3)
def test_dinov3_files_are_written_and_read_exactly(size: str, tmp_path: Path) -> None:
    preset, architecture, arguments = DINOV3[size]
    ours = small(preset)
    vitreous.save(ours, tmp_path / "m.pth", format="dinov3")
    tensors = torch.load(tmp_path / "m.pth", weights_only=True)
    theirs = read_by_timm(tensors, architecture, arguments | {"global_pool": "token"})
    check_close(theirs, ours, NATIVE, OTHER)
    again = vitreous.load(tmp_path / "m.pth")
    assert again.config.image_size == (224, 224)  # not in the file
    check_identical(again.resized(NATIVE), ours)


def test_published_dinov3_files_have_rounded_periods_masks_and_chunks(tmp_path: Path) -> None:
    ours = small("DINOv3-S/16", position=Rotary2d(period_dtype="bfloat16"))
    vitreous.save(ours, tmp_path / "m.pth", format="dinov3")
    tensors = torch.load(tmp_path / "m.pth", weights_only=True)
    periods = tensors["rope_embed.periods"]
    assert torch.equal(periods, periods.bfloat16().float())
    q, k, v = tensors["blocks.1.attn.qkv.bias_mask"].chunk(3)
    assert (q.unique().item(), k.unique().item(), v.unique().item()) == (1, 0, 1)
    tensors["blocks.0.attn.qkv.bias"][64:128] = 7  # masked
    chunked = {name.replace("blocks.", "blocks.0."): x for name, x in tensors.items()}
    chunked |= {"local_cls_norm.weight": torch.ones(64), "local_cls_norm.bias": torch.ones(64)}
    torch.save({"teacher": {f"backbone.{name}": x for name, x in chunked.items()}}, tmp_path / "n.pth")
    check_identical(vitreous.load(tmp_path / "n.pth").resized(NATIVE), ours)


def test_untied_norms_round_trip(tmp_path: Path) -> None:
    ours = small("DINOv3-S/16", untied_norms=True, key_bias=True)
    vitreous.save(ours, tmp_path / "m.pth", format="dinov3")
    check_identical(vitreous.load(tmp_path / "m.pth").resized(NATIVE), ours)


def test_satellite_models_have_their_own_mean(tmp_path: Path) -> None:
    vitreous.save(small("DINOv3-S/16"), tmp_path / "dinov3_vitl16_pretrain_sat493m-eadcf0ff.pth", format="dinov3")
    assert vitreous.load(next(tmp_path.iterdir())).config.preprocessing.mean == (0.430, 0.411, 0.296)


def test_other_periods_are_rejected(tmp_path: Path) -> None:
    vitreous.save(small("DINOv3-S/16"), tmp_path / "m.pth", format="dinov3")
    tensors = torch.load(tmp_path / "m.pth", weights_only=True)
    tensors["rope_embed.periods"] *= 1.1
    torch.save(tensors, tmp_path / "m.pth")
    with pytest.raises(BadCheckpoint, match=r"rope_embed\.periods must be those of base 100"):
        vitreous.load(tmp_path / "m.pth")


@pytest.mark.parametrize("size", EVA)
def test_eva_files_are_written_and_read_exactly(size: str, tmp_path: Path) -> None:
    preset, architecture, arguments = EVA[size]
    ours = small(preset)
    vitreous.save(ours, tmp_path / "m.pt", format="eva")
    tensors = torch.load(tmp_path / "m.pt", weights_only=True)
    assert tensors["blocks.1.attn.rope.freqs_cos"].shape == (16, 32)
    check_close(read_by_timm(dict(tensors), architecture, arguments), ours, NATIVE)
    torch.save({"module": tensors}, tmp_path / "m.pt")
    again = vitreous.load(tmp_path / "m.pt")
    assert again.config.position == Rotary2d(1e4, "index", (16, 16), learned=Learned1d(interpolation="huggingface"))
    assert (again.config.preprocessing, again.config.mlp) == (CLIP, ours.config.mlp)
    check_close(again, ours, NATIVE)
    # EVA's code resamples positions without antialiasing.
    table = tensors["pos_embed"][:, 1:].unflatten(1, (4, 4)).permute(0, 3, 1, 2)
    table = F.interpolate(table, size=(3, 6), mode="bicubic").flatten(2).mT
    resampled = {**tensors, "pos_embed": torch.cat([tensors["pos_embed"][:, :1], table], dim=1)}
    check_close(read_by_timm(resampled, architecture, arguments | {"img_size": OTHER}), again, OTHER)


def test_encoder_of_masked_image_modelling_is_read(tmp_path: Path) -> None:
    vitreous.save(small("EVA02-Ti/14"), tmp_path / "m.pt", format="eva")
    tensors = torch.load(tmp_path / "m.pt", weights_only=True)
    tensors = {name.replace("fc_norm", "norm"): x for name, x in tensors.items() if not name.startswith("head.")}
    tensors |= {
        "mask_token": torch.zeros(1, 1, 64),
        "lm_head.weight": torch.zeros(5, 64),
        "lm_head.bias": torch.ones(5),
    }
    torch.save({"model": tensors}, tmp_path / "m.pt")
    with pytest.warns(vitreous.AssumptionWarning, match="pool=GlobalAverage"):
        ours = vitreous.load(tmp_path / "m.pt")
    assert ours.config.num_classes == 0
    assert "lm_head.weight" in ours.provenance["left_out"]


def test_tower_of_eva_clip_is_read(tmp_path: Path) -> None:
    """EVA-CLIP has a norm in attention, and its image tower is under `visual.`."""
    eva_clip = {"attention_output_norm": True, "pool": {"kind": "ClassToken"}}
    ours = small("EVA02-B/14", **eva_clip)
    vitreous.save(ours, tmp_path / "m.pt", format="eva")
    tensors = torch.load(tmp_path / "m.pt", weights_only=True)
    tower = {f"visual.{name}": x for name, x in tensors.items()}
    torch.save(tower | {"text.token_embedding.weight": torch.zeros(9, 8)}, tmp_path / "m.pt")
    check_close(vitreous.load(tmp_path / "m.pt"), ours, NATIVE)


@pytest.mark.parametrize(
    ("preset", "format", "fields", "message"),
    [
        ("DINOv3-S/16", "dinov3", {"num_classes": 3}, "a classifier is not supported"),
        ("DINOv3-S/16", "dinov3", {"position": Rotary2d(50.0)}, "requires position.base = 100, got 50"),
        ("DINOv3-S/16", "eva", {}, "EVA-02 requires Rotary2d"),
        ("EVA02-Ti/14", "dinov3", {}, "requires 'edges' coordinates"),
        ("EVA02-Ti/14", "eva", {"key_bias": True}, "requires key_bias=False"),
        ("EVA02-Ti/14", "dinov2", {}, "requires key_bias"),
    ],
)
def test_unsupported_models_are_not_written(
    preset: str, format: str, fields: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedByFormat, match=message):
        vitreous.save(small(preset, **fields), tmp_path / "m.pth", format=format)
