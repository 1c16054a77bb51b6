"""Every combination of parts overfits one batch of noise with random labels in a few steps."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from vitreous.model import options
from vitreous.model.build import build_vit
from vitreous.model.config import ViTConfig

pytestmark = pytest.mark.slow

POSITIONS = [
    options.NoPosition(),
    options.Learned1d(),
    options.Learned2d(),
    options.SinCos2d(),
    options.RelativeBias(),
    options.Rotary2d(),
    options.Conditional(),
]
POOLS = [options.ClassToken(), options.GlobalAverage("before"), options.GlobalAverage("after"), options.AttentionPool()]
STEMS = {"conv": None, "linear": None, "hybrid": options.ResNetStem(stages=(1, 1), width=32)}


@pytest.mark.parametrize(("position", "pool", "stem"), list(itertools.product(POSITIONS, POOLS, STEMS)), ids=str)
def test_overfits_one_batch(position: options.PositionConfig, pool: options.PoolConfig, stem: str) -> None:
    config = ViTConfig(
        image_size=(16, 24),
        stem=STEMS[stem],
        patch_size=(1, 1) if stem == "hybrid" else (8, 8),
        patch_method="linear" if stem == "linear" else "conv",
        class_token=isinstance(pool, options.ClassToken),
        position=position,
        width=32,
        depth=2,
        num_heads=2,
        mlp_width=64,
        pool=pool,
        num_classes=4,
    )
    model = build_vit(config)
    images, labels = torch.randn(16, 3, 16, 24), torch.randint(0, 4, (16,))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(100):
        logits = model(images)
        if (logits.argmax(1) == labels).all():
            return
        optimizer.zero_grad()
        F.cross_entropy(logits, labels).backward()
        optimizer.step()
    pytest.fail(f"after 100 steps {(logits.argmax(1) == labels).float().mean():.0%} of one batch are right")
