"""The picture as it is, and which part of it the model saw: maps are drawn there, at the picture's own aspect."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch.nn.functional as F
from jaxtyping import UInt8
from PIL import Image

from vitreous.common.checks import Size
from vitreous.data.image import decode, size_of
from vitreous.data.sources.base import StoredImage
from vitreous.model.centre_crop import centre, resized_for
from vitreous.model.config import ViTConfig
from vitreous.model.options import Preprocessing

LONGEST, SHORTEST, TINY = 960, 448, 64  # pixels of the longer side: shown as at most, as at least, and as squares below


class Box(NamedTuple):
    """A rectangle in a picture; its edges need not be between two pixels."""

    top: float
    left: float
    height: float
    width: float

    def pixels(self) -> tuple[slice, slice]:
        """The rows and columns of whole pixels next to it."""
        return (
            slice(round(self.top), round(self.top + self.height)),
            slice(round(self.left), round(self.left + self.width)),
        )


@dataclass(frozen=True)
class Canvas:
    """A picture as large as it is shown, in colour, and where in it the model looked."""

    pixels: UInt8[np.ndarray, "h w 3"]
    seen: Box
    image_size: Size  # of what the model was given
    patch_stride: Size  # pixels of that in a patch
    grid: Size
    blocky: bool  # few pixels, shown as the squares they are


def seen_part(picture: Size, size: Size, how: Preprocessing) -> Box:
    """The part of a picture that the model sees, in the picture's own pixels. It extends beyond a padded picture.

    >>> seen_part((300, 600), (224, 224), Preprocessing(crop_fraction=1.0))
    Box(top=0.0, left=150.0, height=300.0, width=300.0)
    """
    resized = resized_for(picture, size, how)
    scale = [there / here for there, here in zip(picture, resized, strict=True)]
    top, left = centre(resized, size, how)
    return Box(top * scale[0], left * scale[1], size[0] * scale[0], size[1] * scale[1])


def canvas_of(picture: StoredImage, config: ViTConfig) -> Canvas:
    """Large pictures are shrunk to LONGEST, small ones enlarged to SHORTEST; neither is squashed or cut."""
    height, width = size_of(picture)
    longest = max(height, width)
    scale = min(LONGEST / longest, 1.0)
    blocky = longest < TINY
    if longest < SHORTEST:
        scale = -(-SHORTEST // longest) if blocky else SHORTEST / longest
    shown = (max(round(height * scale), 1), max(round(width * scale), 1))
    image = decode(picture, config.channels, at_least=shown)
    if config.channels == 1:
        image = image.expand(3, -1, -1)
    way = {"mode": "nearest-exact"} if blocky else {"mode": "bicubic", "antialias": True}
    pixels = F.interpolate(image[None].contiguous(), shown, **way)[0].permute(1, 2, 0).contiguous().numpy()
    seen = seen_part((height, width), config.image_size, config.preprocessing)
    down, across = shown[0] / height, shown[1] / width
    box = Box(seen.top * down, seen.left * across, seen.height * down, seen.width * across)
    if config.preprocessing.fit == "pad":
        pixels, box = _padded(pixels, box)
    return Canvas(
        pixels,
        box,
        config.image_size,
        config.patch_stride,
        config.grid,
        blocky,
    )


def _padded(pixels: UInt8[np.ndarray, "h w 3"], box: Box) -> tuple[UInt8[np.ndarray, "h2 w2 3"], Box]:
    """Add white margins to a picture that the model sees padded, so that its box lies within."""
    height, width, _ = pixels.shape
    above, left = math.ceil(max(-box.top, 0)), math.ceil(max(-box.left, 0))
    below = math.ceil(max(box.top + box.height - height, 0))
    right = math.ceil(max(box.left + box.width - width, 0))
    pixels = np.pad(pixels, ((above, below), (left, right), (0, 0)), constant_values=255)
    return pixels, box._replace(top=box.top + above, left=box.left + left)


def resized(values: np.ndarray, size: Size, smooth: bool) -> np.ndarray:
    """Numbers, [h, w] or [h, w, 3], at another size: between them by straight lines, or each as a block."""
    way = Image.Resampling.BILINEAR if smooth else Image.Resampling.NEAREST
    parts = values[..., None] if values.ndim == 2 else values
    planes = [
        np.asarray(Image.fromarray(np.ascontiguousarray(plane, dtype=np.float32)).resize(size[::-1], way))
        for plane in np.moveaxis(parts, -1, 0)
    ]
    return planes[0] if values.ndim == 2 else np.stack(planes, axis=-1)


def onto(canvas: Canvas, values: np.ndarray, smooth: bool = True) -> np.ndarray:
    """A map of patches, as large as the part of the canvas that the model saw. Few patches are always shown as blocks.

    A grid may reach beyond the image, where that was padded: what lies there is cut off.
    """
    rows, columns = canvas.seen.pixels()
    target = (rows.stop - rows.start, columns.stop - columns.start)
    (gh, gw), (uh, uw), (h, w) = canvas.grid, canvas.patch_stride, canvas.image_size
    whole = (round(target[0] * gh * uh / h), round(target[1] * gw * uw / w))
    smooth = smooth and min(canvas.grid) >= 7 and not canvas.blocky
    return resized(values, whole, smooth)[: target[0], : target[1]]
