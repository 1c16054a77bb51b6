"""Swin Transformers of Microsoft, timm, transformers and torchvision: reading, writing and live parity."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vitreous
from optional_imports import import_timm, import_torchvision, import_transformers
from parity import check_close, noisy
from vitreous.model.build import build
from vitreous.model.config import SegmenterConfig
from vitreous.model.options import PyramidDecoder
from vitreous.model.swin_config import SwinConfig, SwinV1, SwinV2, WindowRule
from vitreous.weights.convert import UnsupportedByFormat, convert
from vitreous.weights.io.errors import BadCheckpoint
from vitreous.weights.load import describe

pytestmark = [
    pytest.mark.filterwarnings("ignore::vitreous.weights.formats.base.AssumptionWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:timm.layers.interpolate"),
]
VERSIONS = (SwinV1(), SwinV2())
NATIVE, OTHER = (32, 32), (44, 60)  # the grids of 11 x 15 and 6 x 8 patches are not multiples of the window


def tiny(version: SwinV1 | SwinV2, rule: WindowRule = "microsoft", **fields: Any) -> SwinConfig:
    config = SwinConfig(
        image_size=NATIVE,
        version=version,
        width=16,
        depths=(2, 2),
        stage_heads=(2, 4),
        window=(4, 4),
        window_rule=rule,
        num_classes=5,
    )
    return dataclasses.replace(config, **fields)


def timm_peer(version: SwinV1 | SwinV2, size: tuple[int, int], window: int = 4) -> nn.Module:
    name = "swin_tiny_patch4_window7_224" if isinstance(version, SwinV1) else "swinv2_tiny_window8_256"
    args: dict[str, Any] = {"embed_dim": 16, "depths": (2, 2), "num_heads": (2, 4), "num_classes": 5}
    args["window_size"] = window
    if isinstance(version, SwinV2) and version.pretrained_windows:
        args["pretrained_window_sizes"] = version.pretrained_windows
    return import_timm().create_model(name, img_size=size, strict_img_size=False, **args)


def read_by_timm(state: dict[str, Any], other: nn.Module) -> nn.Module:
    """Load a file into a model, maybe for another image size or window, as timm does with pretrained files."""
    from timm.models import swin_transformer, swin_transformer_v2

    second = isinstance(other, swin_transformer_v2.SwinTransformerV2)
    module = swin_transformer_v2 if second else swin_transformer
    other.load_state_dict(module.checkpoint_filter_fn(state, other), strict=not second)
    return other.eval()


def torchvision_peer(version: SwinV1 | SwinV2) -> nn.Module:
    import_torchvision()
    from torchvision.models import swin_transformer as peer

    parts: dict[str, Any] = {}
    if isinstance(version, SwinV2):
        parts = {"block": peer.SwinTransformerBlockV2, "downsample_layer": peer.PatchMergingV2}
    return peer.SwinTransformer([4, 4], 16, [2, 2], [2, 4], [4, 4], num_classes=5, **parts)


def transformers_peer(version: SwinV1 | SwinV2, size: tuple[int, int] = NATIVE) -> nn.Module:
    transformers = import_transformers()
    kind = "Swin" if isinstance(version, SwinV1) else "Swinv2"
    config = getattr(transformers, f"{kind}Config")(
        image_size=size if size[0] != size[1] else size[0],
        embed_dim=16,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
        num_labels=5,
    )
    return getattr(transformers, f"{kind}ForImageClassification")(config)


@pytest.mark.slow
@pytest.mark.parametrize("version", [*VERSIONS, SwinV2((6, 3))])
def test_timm_models_give_the_same_outputs_in_both_directions(version: SwinV1 | SwinV2, tmp_path: Path) -> None:
    theirs = noisy(timm_peer(version, NATIVE))
    torch.save(theirs.state_dict(), tmp_path / "theirs.pth")
    config = tiny(version, "timm")
    given = {"version": version, "window": (4, 4), "image_size": NATIVE} if isinstance(version, SwinV2) else {}
    ours = vitreous.load(tmp_path / "theirs.pth", overrides=given)
    assert dataclasses.replace(ours.config, preprocessing=config.preprocessing) == config
    check_close(ours, theirs, NATIVE)
    for size in (OTHER, (24, 64), (16, 96)):  # the windows of the last stage shrink to 3 x 4 and 2 x 4
        check_close(ours, read_by_timm(theirs.state_dict(), timm_peer(version, size)), size)
    if not any(config.pretrained_windows):
        larger = timm_peer(version, (48, 48), 6)
        if isinstance(version, SwinV2):
            larger = timm_peer(SwinV2((4, 4)), (48, 48), 6)
        check_close(ours.resampled({"window": 6}, NATIVE), read_by_timm(theirs.state_dict(), larger), (48, 48))

    vitreous.save(ours, tmp_path / "ours", format="timm")
    assert vitreous.load(tmp_path / "ours").config == ours.config
    again = import_timm().create_model(f"local-dir:{tmp_path / 'ours'}", pretrained=True).eval()
    same_tensors(again.state_dict(), theirs.state_dict())
    check_close(again, theirs, NATIVE)


@pytest.mark.parametrize("version", VERSIONS)
def test_timm_reads_rectangular_patches(version: SwinV1 | SwinV2, tmp_path: Path) -> None:
    ours = noisy(build(tiny(version, "timm", patch_size=(4, 2))))
    vitreous.save(ours, tmp_path / "ours", format="timm")
    assert vitreous.load(tmp_path / "ours").config == ours.config
    theirs = import_timm().create_model(f"local-dir:{tmp_path / 'ours'}", pretrained=True).eval()
    check_close(ours, theirs, NATIVE)


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_torchvision_models_give_the_same_outputs_in_both_directions(version: SwinV1 | SwinV2, tmp_path: Path) -> None:
    theirs = noisy(torchvision_peer(version))
    torch.save(theirs.state_dict(), tmp_path / "theirs.pth")
    ours = vitreous.load(tmp_path / "theirs.pth")
    assert ours.config == dataclasses.replace(tiny(version, "torchvision"), preprocessing=ours.config.preprocessing)
    for size in (NATIVE, OTHER):
        check_close(ours, theirs, size)
    vitreous.save(ours, tmp_path / "ours.pth", format="torchvision")
    again = torchvision_peer(version).eval()
    again.load_state_dict(torch.load(tmp_path / "ours.pth"), strict=True)
    check_close(again, theirs, OTHER)


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_transformers_models_give_the_same_outputs_in_both_directions(version: SwinV1 | SwinV2, tmp_path: Path) -> None:
    theirs = noisy(transformers_peer(version))
    theirs.save_pretrained(tmp_path / "theirs")
    ours = vitreous.load(tmp_path / "theirs")
    assert ours.config == dataclasses.replace(
        tiny(version), preprocessing=ours.config.preprocessing, stochastic_depth=0.1
    )
    other = transformers_peer(version, OTHER).eval()
    other.load_state_dict(theirs.state_dict())
    for size, peer in ((NATIVE, theirs), (OTHER, other)):
        check_close(ours, lambda images, peer=peer: peer(images).logits, size)

    vitreous.save(ours, tmp_path / "ours", format="huggingface")
    again = type(theirs).from_pretrained(tmp_path / "ours").eval()
    same_tensors(again.state_dict(), theirs.state_dict())
    without_head = vitreous.load(tmp_path / "theirs", num_classes=0)
    vitreous.save(without_head, tmp_path / "base", format="huggingface")
    assert "SwinModel" in (tmp_path / "base/config.json").read_text() or isinstance(version, SwinV2)
    in_memory = {name.removeprefix(f"{theirs.base_model_prefix}."): x for name, x in theirs.state_dict().items()}
    torch.save(in_memory, tmp_path / "in_memory.pth")
    read = vitreous.load(tmp_path / "in_memory.pth", overrides={"window": (4, 4), "image_size": NATIVE})
    assert torch.equal(read(torch.ones(1, 3, *NATIVE)), ours(torch.ones(1, 3, *NATIVE)))


@pytest.mark.parametrize("version", [*VERSIONS, SwinV2((6, 3))])
def test_microsofts_files_contain_the_buffers_of_its_code(version: SwinV1 | SwinV2, tmp_path: Path) -> None:
    ours = noisy(build(tiny(version, image_size=(64, 64))))
    vitreous.save(ours, tmp_path / "ours.pth", format="microsoft")
    state = torch.load(tmp_path / "ours.pth")["model"]
    assert state["layers.0.blocks.1.attn_mask"].shape == (16, 16, 16)
    assert set(state["layers.0.blocks.1.attn_mask"].unique().tolist()) == {0, -100}
    assert "layers.0.blocks.0.attn_mask" not in state
    assert state["layers.1.blocks.1.attn.relative_position_index"].shape == (16, 16)
    loaded = vitreous.load(tmp_path / "ours.pth")  # the masks determine the image size
    assert loaded.config == ours.config
    assert torch.equal(loaded(torch.ones(1, 3, 64, 64)), ours(torch.ones(1, 3, 64, 64)))
    encoder = {f"encoder.{name}": value for name, value in state.items()}
    torch.save({"model": encoder | {"encoder.mask_token": torch.zeros(1, 1, 16)}}, tmp_path / "simmim.pth")
    assert vitreous.load(tmp_path / "simmim.pth").config == ours.config


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_timm_reads_microsofts_files(version: SwinV1 | SwinV2, tmp_path: Path) -> None:
    """timm's own conversion of Microsoft's files is the reference for their names and the order of merged patches."""
    ours = noisy(build(tiny(version)))
    vitreous.save(ours, tmp_path / "m.pth", format="microsoft")
    for size in (NATIVE, (64, 64)):
        theirs = read_by_timm(torch.load(tmp_path / "m.pth"), timm_peer(version, size))
        check_close(ours, theirs, size)
        check_close(vitreous.load(tmp_path / "m.pth", overrides={"window": 4}), theirs, size)


def test_a_model_is_refused_where_the_library_has_other_windows(tmp_path: Path) -> None:
    small = build(tiny(SwinV1(), "timm", image_size=(12, 32)))  # windows of 3 x 4
    with pytest.raises(UnsupportedByFormat, match="windows"):
        vitreous.save(small, tmp_path / "a.pth", format="torchvision")
    with pytest.raises(UnsupportedByFormat, match="windows"):
        vitreous.save(small, tmp_path / "a.pth", format="microsoft")
    padded = build(tiny(SwinV1(), "timm", image_size=(60, 60)))  # shifted and padded, in another order
    with pytest.raises(UnsupportedByFormat, match="rule of timm"):
        vitreous.save(padded, tmp_path / "a.pth", format="torchvision")
    with pytest.raises(UnsupportedByFormat, match="family"):
        vitreous.save(padded, tmp_path / "a.npz", format="google")


def test_tables_that_timm_cannot_read_are_refused(tmp_path: Path) -> None:
    ours = build(tiny(SwinV1(), "timm", image_size=(24, 64)))  # windows of 3 x 4 in stage 1
    with pytest.raises(UnsupportedByFormat, match="square windows"):
        vitreous.save(ours, tmp_path / "a", format="timm")
    shrunk = noisy(build(tiny(SwinV1(), "timm", image_size=(24, 24))))
    vitreous.save(shrunk, tmp_path / "b", format="timm")
    theirs = import_timm().create_model(f"local-dir:{tmp_path / 'b'}", pretrained=True).eval()
    check_close(shrunk, theirs, (24, 24))


@pytest.mark.parametrize("version", VERSIONS)
def test_sizes_that_timm_rounds_down_are_refused(version: SwinV1 | SwinV2, tmp_path: Path) -> None:
    """timm fits windows to 3 x 3 patches, but merges 7 x 7 into 4 x 4 patches."""
    ours = build(tiny(version, "timm", image_size=(28, 28)))
    with pytest.raises(UnsupportedByFormat, match="stage 1"):
        vitreous.save(ours, tmp_path / "a", format="timm")
    vitreous.save(ours, tmp_path / "a", format="timm", lossy=True)
    with pytest.raises(BadCheckpoint, match="stage 1"):
        vitreous.load(tmp_path / "a")
    assert vitreous.load(tmp_path / "a", image_size=32).config.image_size == (32, 32)


def test_models_with_a_window_size_per_stage_are_refused(tmp_path: Path) -> None:
    ours = build(tiny(SwinV1()))
    vitreous.save(ours, tmp_path / "a.pth", format="microsoft")
    state = torch.load(tmp_path / "a.pth")["model"]
    for number in range(2):
        state[f"layers.1.blocks.{number}.attn.relative_position_bias_table"] = torch.zeros(25, 4)
    torch.save(state, tmp_path / "b.pth")
    with pytest.raises(BadCheckpoint, match="stage 1"):
        vitreous.load(tmp_path / "b.pth")


def test_names_of_timm_tell_the_windows_of_v2(tmp_path: Path) -> None:
    stages = {"depths": (1, 1, 1, 1), "stage_heads": (1, 1, 1, 1), "width": 8}
    ours = build(tiny(SwinV2(), "timm", image_size=(384, 384), window=(24, 24), **stages))
    vitreous.save(ours, tmp_path / "swinv2_base_window12to24_192to384.pth", format="timm")
    config = vitreous.load(tmp_path / "swinv2_base_window12to24_192to384.pth").config
    assert isinstance(config, SwinConfig)
    assert config.window == (24, 24)
    assert config.image_size == (384, 384)
    assert config.pretrained_windows == (12, 12, 12, 6)


@pytest.mark.parametrize("format", ["timm", "huggingface", "microsoft", "vitreous"])
@pytest.mark.parametrize("version", VERSIONS)
def test_windows_change_on_loading(version: SwinV1 | SwinV2, format: str, tmp_path: Path) -> None:
    """Positions keep the units of the old windows of each stage, as in Microsoft's models with windows of 12 to 24."""
    side = 4 if format == "huggingface" and isinstance(version, SwinV1) else 8  # transformers requires a window to fit
    shape: dict[str, Any] = {"image_size": (64, 64), "depths": (1, 1, 1), "stage_heads": (1, 2, 4)}
    rule: WindowRule = "timm" if format == "timm" else "microsoft"
    ours = noisy(build(tiny(version, rule, window=(side, side), **shape)))
    path = tmp_path / ("m.pth" if format == "microsoft" else "m")
    vitreous.save(ours, path, format=format)
    given: dict[str, Any] = {"window": 2 * side}
    larger = vitreous.load(path, image_size=128, overrides=given)
    assert ours.config.stage_windows == ((side, side), (side, side), (4, 4))
    assert larger.config.stage_windows == ((2 * side, 2 * side), (2 * side, 2 * side), (8, 8))
    assert larger.config.pretrained_windows == ((8, 8, 4) if isinstance(version, SwinV2) else (0, 0, 0))
    check_close(ours.resampled(given, (128, 128)), larger, (128, 128))
    assert describe(path, given).config.window == (2 * side, 2 * side)


def test_windows_of_a_segmenter_change_on_loading(tmp_path: Path) -> None:
    ours = noisy(build(SegmenterConfig(tiny(SwinV2(), num_classes=0), PyramidDecoder(8), num_classes=3)))
    vitreous.save(ours, tmp_path / "m")
    larger = vitreous.load(tmp_path / "m", image_size=64, overrides={"window": 8})
    assert larger.config.backbone == tiny(SwinV2((4, 4)), num_classes=0, window=(8, 8), image_size=(64, 64))
    assert not torch.equal(larger(images := torch.randn(1, 3, 64, 64)), ours(images))


@pytest.mark.slow
def test_convert_reports_parity_with_the_other_library(tmp_path: Path) -> None:
    import_timm()
    vitreous.save(noisy(build(tiny(SwinV1()))), tmp_path / "ours")
    for to, target in (("timm", "a"), ("torchvision", "b.pth"), ("huggingface", "c")):
        report = convert(tmp_path / "ours", tmp_path / target, to=to, check=True, lossy=True)
        assert max(stage.largest for stage in report.differences) == 0
        assert report.peer is not None
        assert report.peer.outputs is not None, report.peer.reason
        assert report.peer.outputs.largest < 2e-5
    assert json.loads((tmp_path / "a/config.json").read_text())["model_args"]["window_size"] == 4


def same_tensors(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert torch.equal(ours[name], value), name
