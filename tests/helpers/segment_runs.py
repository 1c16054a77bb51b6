"""Configs and data for small segmentation runs."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitreous.training import Augment, Optim, Segmenting, TrainConfig

SMALL = {"patch_size": 4, "width": 32, "mlp_width": 32, "depth": 2, "num_heads": 2}


def segmenting(out: Path, **changes: Any) -> TrainConfig:
    """Return the config of a small run on images of 16 x 16 pixels."""
    config = TrainConfig(
        task="segment",
        data="shapes:size=16,count=48,val=12",
        model="ViT-Lite-6/4",
        overrides=SMALL,
        image_size=(16,),
        out=out,
        steps=6,
        batch_size=16,
        device="cpu",
        workers=0,
        evaluate_every=1,
        optim=Optim(lr=3e-3, ema=0.9),
        augment=Augment(crop="padded", flip=0.5, colour_jitter=0.3),
        segmenting=Segmenting(cells=4),
    )
    return dataclasses.replace(config, **changes)


def sample_images(root: Path, ids: tuple[int, ...] = (1, 2, 3)) -> Path:
    """Write images with one grey level and masks with one id per half; classes.txt names the ids."""
    for index in range(24):
        split = "train" if index < 16 else "test"
        for kind in ("images", "masks"):
            (root / kind / split).mkdir(parents=True, exist_ok=True)
        left, right = ids[index % len(ids)], ids[(index + 1) % len(ids)]
        mask = np.full((20, 24), left, np.uint8)
        mask[:, 12:] = right
        Image.fromarray(np.stack([mask * 60] * 3, -1)).save(root / f"images/{split}/{index}.png")
        Image.fromarray(mask).save(root / f"masks/{split}/{index}.png")
    (root / "classes.txt").write_text("1 pet\n2 background\n3 border\n")
    return root
