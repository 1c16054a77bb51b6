"""torch.compile and torch.export with a small model of every preset family."""

import pytest
import torch

from vitreous.model.build import build
from vitreous.model.options import Conditional, RelativeBias, Rotary2d
from vitreous.model.presets import PRESETS, configure

THIN = {"width": 48, "depth": 2, "num_heads": 4, "mlp_width": 64}
WINDOWS = {"width": 16, "depths": (1, 2), "stage_heads": (1, 2), "window": (4, 4)}
FAMILIES = {
    "ViT-B/16": THIN,
    "ViT-Lite-7/4": THIN,
    "R50+ViT-B/16": THIN | {"stem": {"kind": "ResNetStem", "stages": [1, 1], "width": 32}},
    "DeiT-B/16": THIN,
    "DeiT-B/16-distilled": THIN,
    "DeiT-III-B/16": THIN,
    "DINOv2-S/14": THIN,
    "DINOv2-g/14-reg": THIN,
    "DINOv3-S/16": THIN,
    "EVA02-B/14": THIN,
    "RoPE-ViT-S/16-mixed": THIN,
    "CLIP-B/32": THIN,
    "SigLIP-B/16": THIN,
    "Swin-Ti/4": WINDOWS,
    "SwinV2-Ti/4-w8": WINDOWS,
    "BiT-R50x1": {"stages": (1, 1), "width": 32},
}
SIZES = {
    "Swin-Ti/4": (40, 56),  # the windows do not fill the grid
    "ViT-Lite-7/4": (32, 32),
    "DINOv2-S/14": (56, 56),
    "DINOv2-g/14-reg": (56, 56),
    "EVA02-B/14": (56, 56),
}


# jaxtyping's checks, which run only under pytest, cannot be traced.
pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.fixture(autouse=True)
def _nothing_compiled_yet() -> None:
    torch._dynamo.reset()


def family(name: str) -> str:
    name = name.replace("OpenCLIP", "CLIP").replace("SigLIP2", "SigLIP")  # the same modules
    return name.replace("+", "-").split("-")[0] + "-III" * ("III" in name) + "-distilled" * ("distilled" in name)


def test_every_preset_family_is_covered() -> None:
    hybrids = {name for name in PRESETS if "+" in name}
    missing = {family(name) for name in set(PRESETS) - hybrids} - {family(name) for name in FAMILIES}
    assert not missing


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_compiles_to_one_graph(name: str) -> None:
    """Code is generated for one model only, because a C++ compiler needs a minute for each.

    Models with other kinds of blocks are compiled with gradients too, as in training, and the rest for inference.
    """
    config = configure(name, num_classes=5, image_size=SIZES.get(name, (64, 64)), overrides=FAMILIES[name])
    model = build(config).eval()
    images = torch.randn(2, 3, *config.image_size)
    backend = "inductor" if name == "ViT-B/16" else "aot_eager"
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    with torch.set_grad_enabled(name in ("ViT-B/16", "DINOv2-g/14-reg", "EVA02-B/14", "Swin-Ti/4")):
        torch.testing.assert_close(compiled(images), model(images), atol=1e-4, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ViT-Lite-7/4", "DeiT-III-B/16", "DINOv2-g/14-reg"])
def test_exports_with_a_dynamic_batch_size(name: str) -> None:
    """The other families are exported by tests/test_every_family.py."""
    config = configure(name, num_classes=5, image_size=SIZES.get(name, (64, 64)), overrides=FAMILIES[name])
    model = build(config).eval()
    images = torch.randn(3, 3, *config.image_size)
    exported = torch.export.export(model, (images[:2],), dynamic_shapes=({0: torch.export.Dim("batch")},))
    torch.testing.assert_close(exported.module()(images), model(images))


@pytest.mark.slow
@pytest.mark.parametrize("position", [Rotary2d(), RelativeBias(), Conditional()], ids=str)
@pytest.mark.parametrize("size", [(64, 64), (32, 96)], ids=["own size", "another size"])
def test_trains_as_one_graph(position: object, size: tuple[int, int]) -> None:
    """Test position embeddings that act inside the encoder. No code is generated, to save time."""
    overrides = THIN | {"position": position, "stochastic_depth": 0.1}
    model = build(configure("ViT-B/16", num_classes=5, image_size=(64, 64), overrides=overrides))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    compiled(torch.randn(2, 3, *size)).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
