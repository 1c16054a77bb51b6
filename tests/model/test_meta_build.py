import subprocess
import sys

import pytest
import torch

from vitreous.model.build import build
from vitreous.model.config import ResNetConfig, ViTConfig
from vitreous.model.meta_build import build_blank
from vitreous.model.options import AttentionPool, Conditional, RelativeBias, ResNetStem

CONFIGS = {
    "ViT": ViTConfig(width=32, depth=2, num_heads=4, mlp_width=64, num_classes=5, registers=2, layer_scale=0.1),
    "hybrid": ViTConfig(width=32, depth=1, num_heads=4, mlp_width=64, stem=ResNetStem((), 32), patch_size=(8, 8)),
    "relative": ViTConfig(width=32, depth=2, num_heads=4, mlp_width=64, position=RelativeBias(), pool=AttentionPool()),
    "conditional": ViTConfig(width=32, depth=2, num_heads=4, mlp_width=64, position=Conditional()),
    "ResNet": ResNetConfig(stages=(1, 1), width=32, num_classes=5),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_blank_model_has_the_same_tensors_on_the_meta_device(name: str) -> None:
    blank, real = build_blank(CONFIGS[name]).state_dict(), build(CONFIGS[name]).state_dict()
    assert all(tensor.is_meta for tensor in blank.values())
    assert {key: (x.shape, x.dtype) for key, x in blank.items()} == {key: (x.shape, x.dtype) for key, x in real.items()}


@pytest.mark.parametrize("name", ["ViT", "hybrid", "relative", "ResNet"])
def test_blank_model_computes_shapes(name: str) -> None:
    config = CONFIGS[name]
    assert build_blank(config)(torch.empty(2, 3, *config.image_size, device="meta")).shape == (2, config.num_classes)


@pytest.mark.slow
def test_build_blank_does_not_import_the_compiler() -> None:
    """Random initialisation on the meta device would import it, which takes over a second."""
    program = (
        "import sys; from vitreous.model.meta_build import build_blank; from vitreous.model.presets import preset; "
        "build_blank(preset('ViT-Ti/16')); build_blank(preset('R26+ViT-S/32')); print('torch._dynamo' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False"]
