"""ResNets equal timm's for the same weights."""

import pytest
import torch
from torch import nn

from optional_imports import import_timm
from vitreous.model.build import build
from vitreous.model.presets import configure
from vitreous.model.resnet import same_padding


@pytest.mark.slow
@pytest.mark.parametrize("size", [(64, 64), (65, 97)], ids=["even", "odd"])
def test_bit_equals_timm(size: tuple[int, int]) -> None:
    timm = import_timm()
    timm_model = timm.create_model("resnetv2_50x1_bit", num_classes=7).eval()
    model = build(configure("BiT-R50x1", num_classes=7)).eval()
    for parameter in timm_model.parameters():
        nn.init.normal_(parameter, std=0.5)
    state = {}
    for name, tensor in timm_model.state_dict().items():
        if name.startswith("head."):
            state[name.replace("fc.", "")] = tensor.flatten(1) if tensor.ndim == 4 else tensor
        else:
            state[rename_timm_tensors(name)] = tensor
    model.load_state_dict(state)
    images = torch.randn(2, 3, *size)
    torch.testing.assert_close(model(images), timm_model(images), atol=1e-3, rtol=1e-3)


def rename_timm_tensors(name: str) -> str:
    """Rename timm's stages.1.blocks.0.conv2.weight to stages.3.conv2.weight."""
    name = name.replace("stem.conv", "root").replace("stem.norm", "norm")
    if not name.startswith("stages."):
        return name
    _, stage, _, block, *rest = name.split(".")
    unit = sum((3, 4, 6, 3)[: int(stage)]) + int(block)
    tail = ".".join(rest).replace("downsample.conv", "shortcut")
    return f"stages.{unit}.{tail}"


@pytest.mark.slow
@pytest.mark.parametrize("size", [(64, 64), (61, 90)], ids=["even", "odd"])
def test_hybrid_stem_equals_timm(size: tuple[int, int]) -> None:
    timm = import_timm()
    timm_model = timm.create_model("vit_base_r50_s16_224", num_classes=0, depth=1).patch_embed.backbone.eval()
    model = build(configure("R50+ViT-B/16", num_classes=0, overrides={"depth": 1})).stem.eval()
    for parameter in timm_model.parameters():
        nn.init.normal_(parameter, std=0.5)
    state = {}
    for name, tensor in timm_model.state_dict().items():
        name = (
            rename_timm_tensors(name)
            .replace("downsample.norm", "shortcut.1")
            .replace("shortcut.weight", "shortcut.0.weight")
        )
        state[name] = tensor
    model.load_state_dict(state)
    images = torch.randn(2, 3, *size)
    expected = timm_model(images)
    expected = expected[-1] if isinstance(expected, list | tuple) else expected
    torch.testing.assert_close(model(images), expected, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("side", range(1, 12))
@pytest.mark.parametrize(("kernel", "stride"), [(7, 2), (3, 2), (3, 1), (1, 2)])
def test_same_padding_rounds_the_output_size_up(side: int, kernel: int, stride: int) -> None:
    padded = same_padding(torch.ones(1, 1, side, 12), kernel, stride)
    rows = (padded.shape[2] - kernel) // stride + 1
    assert rows == -(-side // stride)
    above = int((padded[0, 0].amax(1) == 0).cumprod(0).sum())
    assert padded.shape[2] - side - above in (above, above + 1)  # an odd row is added at the bottom
