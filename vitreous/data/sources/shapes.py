"""Pictures we draw ourselves: one shape on a textured background, with a mask. A pure function of (seed, index).

A shape is its signed distance function: below 0 inside, above 0 outside, so that an edge is as soft as one pixel and
the mask is exact. Nothing is stored: a picture is drawn when it is asked for.

h, w: height and width.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vitreous.common.checks import Size, as_size, check_whole
from vitreous.data.masks.classes import number_classes
from vitreous.data.rng import Draws
from vitreous.data.sources.base import Picture, Source
from vitreous.data.split import Found, listed

NUMBERS = [4, 18, 36, 1]  # how many random numbers a place, the colours, a texture and the noise's strength take
CLASSES = ("circle", "square", "triangle", "ring", "cross", "star")


def open_shapes(options: dict[str, int], seed: int = 0, ignore: Sequence[str] = ()) -> Found:
    """`shapes`, or `shapes:size=96,count=4000,val=1000`: pixels, pictures to train on and to validate on.

    `ignore` names classes of pixels that masks shall not have.
    """
    size, count = options.get("size", 64), options.get("count", 2000)
    val = options.get("val", max(count // 4, 2))
    check_whole("size", size, 8, 4096)
    check_whole("count", count, 2, 10**9)
    check_whole("val", val, 2, 10**9)
    parts: dict[str, Source] = {
        "train": ShapesSource(count, size, seed, "train", ignore),
        "val": ShapesSource(val, size, seed, "val", ignore),
    }
    notes = [f"drawn at {size} pixels by seed {seed}", *([f"{listed(ignore)} ignored"] if ignore else [])]
    return Found("shapes", parts, notes)


class ShapesSource(Source):
    """As many pictures as one likes. Masks hold 0 for the background and 1 + the class for the shape, if none is
    ignored.

    >>> source = ShapesSource(count=12, size=32, seed=0, part="train")
    >>> source.picture(3).shape, source.classes[source.labels[3]], np.unique(source.mask(3)).tolist()
    ((32, 32, 3), 'ring', [0, 4])
    """

    classes = CLASSES

    def __init__(self, count: int, size: int | Size, seed: int, part: str, ignore: Sequence[str] = ()):
        self.size, self.seed, self.part = as_size(size), seed, part
        self.mask_classes, self.mask_ids, table = number_classes(dict(enumerate(("background", *CLASSES))), ignore)
        self.ids = table[: 1 + len(CLASSES)]  # of the background and of each class
        self.labels = np.arange(count, dtype=np.int64) % len(CLASSES)

    def picture(self, index: int) -> Picture:
        draws = self._draws(index)
        place, colours, texture, strength = draws.uniform("shape", sum(NUMBERS))[0].split_with_sizes(NUMBERS)
        paper, shade, ink = _colours(colours)
        background = paper + (shade - paper) * _texture(self.size, texture)
        inside = (0.5 - self._distance(index, place)).clamp(0, 1)
        drawn = background + (ink - background) * inside
        h, w = self.size
        noise = (4 + 12 * strength) * (draws.uniform("noise", 3 * h * w).view(3, h, w) - 0.5)
        return (drawn + noise).clamp(0, 255).round().byte().permute(1, 2, 0).numpy()

    def mask(self, index: int) -> np.ndarray:
        """The pixels whose centres the shape covers, and the background."""
        place = self._draws(index).uniform("shape", sum(NUMBERS))[0].split_with_sizes(NUMBERS)[0]
        inside = (self._distance(index, place) < 0).numpy()
        return np.where(inside, self.ids[self.labels[index] + 1], self.ids[0])

    def name(self, index: int) -> str:
        return f"shapes/{self.part}[{index}]"

    def _draws(self, index: int) -> Draws:
        # The parts differ as epochs do elsewhere, so that train's pictures do not depend on how many there are.
        return Draws(self.seed, {"train": 0, "val": 1}[self.part], torch.tensor([index]))

    def _distance(self, index: int, place: Float[Tensor, "4"]) -> Float[Tensor, "h w"]:
        """How many pixels each pixel's centre is outside the shape."""
        h, w = self.size
        scale, up, along, turn = place.tolist()
        radius = (0.2 + 0.2 * scale) * min(h, w)
        y = torch.arange(h)[:, None] + 0.5 - (radius + up * (h - 2 * radius))
        x = torch.arange(w)[None, :] + 0.5 - (radius + along * (w - 2 * radius))
        cos, sin = math.cos(2 * math.pi * turn), math.sin(2 * math.pi * turn)
        unit = _signed_distance(CLASSES[self.labels[index]], (cos * x + sin * y) / radius, (cos * y - sin * x) / radius)
        return unit * radius


def _signed_distance(shape: str, x: Float[Tensor, "h w"], y: Float[Tensor, "h w"]) -> Float[Tensor, "h w"]:
    """Of a shape that just fits into the unit circle. Near edges it is the distance; elsewhere a bound will do."""
    r = torch.hypot(x, y)
    match shape:
        case "circle":
            return r - 1
        case "square":
            return torch.maximum(x.abs(), y.abs()) - math.sqrt(0.5)
        case "triangle":
            return torch.maximum(-y, torch.maximum(*(0.5 * y + side * math.sqrt(0.75) * x for side in (-1, 1)))) - 0.5
        case "ring":
            return (r - 0.75).abs() - 0.25
        case "cross":
            upright = torch.maximum(x.abs() - 0.25, y.abs() - math.sqrt(1 - 0.25**2))
            flat = torch.maximum(y.abs() - 0.25, x.abs() - math.sqrt(1 - 0.25**2))
            return torch.minimum(upright, flat)
        case "star":
            # Ten equal slices, folded onto one: its edge runs from the tip (1, 0) to the notch at 36 degrees.
            slice_ = math.pi / 5
            angle = (torch.remainder(torch.atan2(y, x) + slice_, 2 * slice_) - slice_).abs()
            notch_x, notch_y = 0.4 * math.cos(slice_), 0.4 * math.sin(slice_)
            length = math.hypot(1 - notch_x, notch_y)
            return (notch_y * (r * angle.cos() - 1) + (1 - notch_x) * r * angle.sin()) / length
        case _:
            raise ValueError(f"shape is {shape!r}, but must be one of {', '.join(CLASSES)}")


def _colours(numbers: Float[Tensor, "18"]) -> tuple[Tensor, Tensor, Tensor]:
    """Two of the background, rather near each other, and the shape's: of four, the one farthest from both."""
    paper, other, *inks = (255 * numbers).view(6, 3)
    shade = (paper + (other - 127.5) / 2).clamp(0, 255)
    apart = [min(float((ink - paper).norm()), float((ink - shade).norm())) for ink in inks]
    ink = inks[apart.index(max(apart))]
    return paper[:, None, None], shade[:, None, None], ink[:, None, None]


def _texture(size: Size, numbers: Float[Tensor, "36"]) -> Float[Tensor, "h w"]:
    """Clouds or stripes, between 0 and 1: how much of the second colour each pixel has."""
    if numbers[0] < 0.5:
        return F.interpolate(numbers.view(1, 1, 6, 6), size, mode="bicubic", align_corners=True)[0, 0].clamp(0, 1)
    _, turn, waves, phase = numbers[:4].tolist()
    y = torch.linspace(0, 1, size[0])[:, None] * math.sin(math.pi * turn)
    x = torch.linspace(0, 1, size[1])[None, :] * math.cos(math.pi * turn)
    return 0.5 + 0.5 * torch.sin(2 * math.pi * ((2 + 6 * waves) * (x + y) + phase))
