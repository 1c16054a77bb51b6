"""Random erasing: a rectangle of noise, so that the model cannot rely on one part of a picture (arXiv 1708.04896).

b: batch, c: channels, h, w: height and width.
"""

import math

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from vitreous.data.rng import Draws, mix

AREA = (0.02, 1 / 3)  # of the picture's, from and to
ASPECT = (0.3, 1 / 0.3)


def erase(images: UInt8[Tensor, "b c h w"], draws: Draws, probability: float) -> UInt8[Tensor, "b c h w"]:
    """Some pictures lose a rectangle. Its pixels become uniform noise, in each channel, as in the paper.

    A rectangle that would be higher or wider than the picture ends at its border instead of being drawn again.
    """
    _, c, h, w = images.shape
    chosen = (draws.uniform("erasing") < probability).nonzero()[:, 0]
    area, aspect, top, left = draws.uniform("erasing box", 4)[chosen].to(images.device, non_blocking=True).unbind(1)
    seeds = _seeds(draws)[chosen].to(images.device, non_blocking=True)
    chosen = chosen.to(images.device, non_blocking=True)

    area = h * w * (AREA[0] + area * (AREA[1] - AREA[0]))
    aspect = torch.exp(math.log(ASPECT[0]) + aspect * math.log(ASPECT[1] / ASPECT[0]))
    inside_h = _between(top, (area * aspect).sqrt().round().clamp(1, h), h)
    inside_w = _between(left, (area / aspect).sqrt().round().clamp(1, w), w)
    inside = (inside_h[:, :, None] & inside_w[:, None, :])[:, None]
    result = images.clone()
    result[chosen] = torch.where(inside, noise(seeds, (c, h, w)), images[chosen])
    return result


def _between(place: Float[Tensor, "g"], length: Float[Tensor, "g"], side: int) -> Tensor:
    """Which of `side` pixels lie in a stretch of this length; `place` in [0, 1) says where it begins."""
    start = (place * (side - length + 1)).floor()[:, None]
    at = torch.arange(side, device=place.device)
    return (at >= start) & (at < start + length[:, None])


def _seeds(draws: Draws) -> Int[Tensor, "b"]:
    high, low = (draws.uniform("erasing noise", 2) * 2**24).long().unbind(1)
    return high << 24 | low


def noise(seeds: Int[Tensor, "g"], shape: tuple[int, int, int]) -> UInt8[Tensor, "g c h w"]:
    """Bytes that depend on the seed and the place only. Every hashed number has eight of them."""
    count = math.prod(shape)
    counter = torch.arange(-(-count // 8), device=seeds.device)
    hashed = mix(mix(seeds)[:, None] + counter)
    return hashed.view(torch.uint8)[:, :count].reshape(-1, *shape)
