"""Writes folders of images and masks."""

from pathlib import Path

import numpy as np

from images import encoded, smooth

CLASSES = "0 sky\n1 sea\n3 border\n"


def ids_of(seed: int, height: int = 12, width: int = 16) -> np.ndarray:
    """Return a mask with all classes and some ignored pixels."""
    chosen = np.random.default_rng(seed).choice([0, 1, 3, 255], (height, width)).astype(np.uint8)
    chosen[0, :3] = 0, 1, 3
    return chosen


def write(root: Path, name: str, seed: int, images: str = "images", masks: str = "masks") -> None:
    for path, data in (
        (root / images / f"{name}.jpg", encoded(smooth(12, 16, seed), "JPEG")),
        (root / masks / f"{name}.png", encoded(ids_of(seed))),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def folder(root: Path, count: int = 6, part: str = "", classes: str | None = CLASSES) -> Path:
    for i in range(count):
        write(root, f"{part}{'ab'[i % 2]}/{i}", i)
    if classes is not None:
        (root / "classes.txt").write_text(classes)
    return root
