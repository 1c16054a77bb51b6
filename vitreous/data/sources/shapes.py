"""Generated images of one shape on a textured background, with exact masks.

An image is a pure function of (seed, split, index) and is drawn each time it is read. A shape is defined by its signed
distance function (negative inside, positive outside), which gives antialiased edges and an exact mask.

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
from vitreous.common.rng import SampleRng
from vitreous.common.text import listed
from vitreous.data.masks.files import number_classes
from vitreous.data.sources.base import FoundData, Source, StoredImage

NUMBERS = [4, 18, 36, 1]  # number of random values for position, colours, texture and noise strength
CLASSES = ("circle", "square", "triangle", "ring", "cross", "star")


def open_shapes(options: dict[str, int], seed: int = 0, ignore: Sequence[str] = ()) -> FoundData:
    """Open `shapes`, e.g. `shapes:size=96,count=4000,val=1000`. In masks, the classes in `ignore` become IGNORED.

    The options are the image size in pixels, the number of train images and the number of val images.
    """
    size, count = options.get("size", 64), options.get("count", 2000)
    val = options.get("val", max(count // 4, 2))
    check_whole("size", size, 8, 4096)
    check_whole("count", count, 2, 10**9)
    check_whole("val", val, 2, 10**9)
    splits: dict[str, Source] = {
        "train": ShapesSource(count, size, seed, "train", ignore),
        "val": ShapesSource(val, size, seed, "val", ignore),
    }
    notes = [
        f"{size} x {size} pixels, generated with seed {seed}",
        *([f"ignored classes: {listed(ignore)}"] if ignore else []),
    ]
    return FoundData("shapes", splits, notes)


class ShapesSource(Source):
    """Generated images. Mask ids are 0 for the background and 1 + label for the shape, before `ignore` is applied."""

    classes = CLASSES

    def __init__(self, count: int, size: int | Size, seed: int, split: str, ignore: Sequence[str] = ()):
        self.size, self.seed, self.split = as_size(size), seed, split
        self.mask_classes, self.mask_ids, table = number_classes(dict(enumerate(("background", *CLASSES))), ignore)
        self.ids = table[: 1 + len(CLASSES)]  # mask values of the background and of each class
        self.labels = np.arange(count, dtype=np.int64) % len(CLASSES)

    def image(self, index: int) -> StoredImage:
        rng = self._rng(index)
        place, colours, texture, strength = rng.uniform("shape", sum(NUMBERS))[0].split_with_sizes(NUMBERS)
        paper, shade, ink = _colours(colours)
        background = paper + (shade - paper) * _texture(self.size, texture)
        inside = (0.5 - self._distance(index, place)).clamp(0, 1)
        drawn = background + (ink - background) * inside
        h, w = self.size
        noise = (4 + 12 * strength) * (rng.uniform("noise", 3 * h * w).view(3, h, w) - 0.5)
        return (drawn + noise).clamp(0, 255).round().byte().permute(1, 2, 0).numpy()

    def mask(self, index: int) -> np.ndarray:
        place = self._rng(index).uniform("shape", sum(NUMBERS))[0].split_with_sizes(NUMBERS)[0]
        inside = (self._distance(index, place) < 0).numpy()
        return np.where(inside, self.ids[self.labels[index] + 1], self.ids[0])

    def name(self, index: int) -> str:
        return f"shapes/{self.split}[{index}]"

    def _rng(self, index: int) -> SampleRng:
        # The split is used as the epoch, so an image does not depend on the size of its split.
        return SampleRng(self.seed, {"train": 0, "val": 1}[self.split], torch.tensor([index]))

    def _distance(self, index: int, place: Float[Tensor, "4"]) -> Float[Tensor, "h w"]:
        """Return the signed distance of each pixel centre from the shape, in pixels."""
        h, w = self.size
        scale, up, along, turn = place.tolist()
        radius = (0.2 + 0.2 * scale) * min(h, w)
        y = torch.arange(h)[:, None] + 0.5 - (radius + up * (h - 2 * radius))
        x = torch.arange(w)[None, :] + 0.5 - (radius + along * (w - 2 * radius))
        cos, sin = math.cos(2 * math.pi * turn), math.sin(2 * math.pi * turn)
        unit = _signed_distance(CLASSES[self.labels[index]], (cos * x + sin * y) / radius, (cos * y - sin * x) / radius)
        return unit * radius


def _signed_distance(shape: str, x: Float[Tensor, "h w"], y: Float[Tensor, "h w"]) -> Float[Tensor, "h w"]:
    """Return the signed distance from a shape inscribed in the unit circle, exact near edges and a bound elsewhere."""
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
        case _:  # star
            # Fold ten equal sectors onto one, whose edge runs from the tip (1, 0) to the notch at 36 degrees.
            slice_ = math.pi / 5
            angle = (torch.remainder(torch.atan2(y, x) + slice_, 2 * slice_) - slice_).abs()
            notch_x, notch_y = 0.4 * math.cos(slice_), 0.4 * math.sin(slice_)
            length = math.hypot(1 - notch_x, notch_y)
            return (notch_y * (r * angle.cos() - 1) + (1 - notch_x) * r * angle.sin()) / length


def _colours(numbers: Float[Tensor, "18"]) -> tuple[Tensor, Tensor, Tensor]:
    """Return two similar background colours, and a distinct shape colour, chosen from four random colours."""
    paper, other, *inks = (255 * numbers).view(6, 3)
    shade = (paper + (other - 127.5) / 2).clamp(0, 255)
    apart = [min(float((ink - paper).norm()), float((ink - shade).norm())) for ink in inks]
    ink = inks[apart.index(max(apart))]
    return paper[:, None, None], shade[:, None, None], ink[:, None, None]


def _texture(size: Size, numbers: Float[Tensor, "36"]) -> Float[Tensor, "h w"]:
    """Return a texture of clouds or stripes: the fraction of the second background colour at each pixel."""
    if numbers[0] < 0.5:
        return F.interpolate(numbers.view(1, 1, 6, 6), size, mode="bicubic", align_corners=True)[0, 0].clamp(0, 1)
    _, turn, waves, phase = numbers[:4].tolist()
    y = torch.linspace(0, 1, size[0])[:, None] * math.sin(math.pi * turn)
    x = torch.linspace(0, 1, size[1])[None, :] * math.cos(math.pi * turn)
    return 0.5 + 0.5 * torch.sin(2 * math.pi * ((2 + 6 * waves) * (x + y) + phase))
