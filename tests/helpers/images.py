"""Functions that draw, encode and compare images, and select a JPEG decoder."""

import io
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vitreous.data.image import jpeg


def smooth(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Return an asymmetric image with three random waves in each channel."""
    generator = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width] / max(height, width)
    waves = [
        sum(np.sin(generator.uniform(1, 9) * x + generator.uniform(1, 9) * y + generator.uniform(0, 6)) for _ in "123")
        for _ in "rgb"
    ]
    return (127.5 + 42 * np.stack(waves, axis=-1)).astype(np.uint8)


def encoded(pixels: np.ndarray | Image.Image, format: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    image.save(file, format, **options)
    return file.getvalue()


def as_array(image: torch.Tensor) -> np.ndarray:
    return image.permute(1, 2, 0).numpy().astype(int)


def difference(ours: torch.Tensor, theirs: np.ndarray) -> float:
    assert tuple(ours.shape[1:]) == theirs.shape[:2]
    return float(np.abs(as_array(ours) - theirs.astype(int)).max())


def jpeg_decoder(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Implement a fixture that decodes with simplejpeg, or as if only Pillow were installed."""
    if name == "simplejpeg":
        pytest.importorskip("simplejpeg")
    else:
        monkeypatch.setitem(sys.modules, "simplejpeg", None)
    jpeg._simplejpeg.cache_clear()
    yield name
    jpeg._simplejpeg.cache_clear()
