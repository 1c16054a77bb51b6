"""Configs and data for small runs with several labels or numbers per image."""

import csv
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitreous.training import Augment, Optim, TrainConfig

CLASSES = ("bright", "green", "red")


def write_table(folder: Path, count: int = 96) -> Path:
    """Write grey images with red, green and bright quarters, and a table of their labels and amounts of colour."""
    rng = np.random.default_rng(0)
    (folder / "images").mkdir(parents=True)
    rows = []
    for index in range(count):
        present = rng.random(3) < 0.5
        pixels = rng.integers(60, 100, (12, 12, 3), dtype=np.uint8)
        amount = rng.uniform(0.4, 1, 2)
        for quarter, here in enumerate(present):
            y, x = 6 * (quarter // 2), 6 * (quarter % 2)
            colour = [[230, 230, 230], [0, 230 * amount[0], 0], [230 * amount[1], 0, 0]][quarter]
            pixels[y : y + 6, x : x + 6] = colour if here else pixels[y : y + 6, x : x + 6]
        path = f"images/{index:03}.png"
        Image.fromarray(pixels).save(folder / path)
        labels = ";".join(name for name, here in zip(CLASSES, present, strict=True) if here)
        green, red = (1000 + 100 * float(here * part) for here, part in zip(present[1:], amount, strict=True))
        split = "train" if index < 2 * count // 3 else "val"
        rows.append({"path": path, "labels": labels, "green": green, "red": red, "split": split})
    with open(folder / "table.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return folder / "table.csv"


def targeting(task: Any, table: Path, out: Path, **changes: Any) -> TrainConfig:
    """Return the config of a small run with all state that resuming must restore."""
    config = TrainConfig(
        task=task,
        data=table,
        model="ViT-Lite-6/4",
        overrides={"patch_size": 4, "width": 32, "mlp_width": 32, "depth": 2, "num_heads": 2},
        image_size=(12,),
        out=out,
        steps=8,
        batch_size=16,
        device="cpu",
        workers=0,
        dropout=0.1,
        evaluate_every=1,
        optim=Optim(lr=3e-3, ema=0.9),
        augment=Augment(crop="padded", flip=0.5),
    )
    return dataclasses.replace(config, **changes)
