"""Policies: RandAugment, TrivialAugment and 3-Augment.

An operation is drawn for each image. Images with the same operation are processed together, so every image is read
and written only once per layer. The drawn operations must be on the CPU for this grouping.

b: batch.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from vitreous.common.rng import SampleRng
from vitreous.data.augment.operations import (
    Images,
    Numbers,
    autocontrast,
    blur,
    brightness,
    contrast,
    equalize,
    posterize,
    saturation,
    sharpness,
    solarize,
    warp,
)

SHEAR_X, SHEAR_Y, RIGHT, DOWN, ROTATE = range(1, 6)


class Choice(NamedTuple):
    """The operation drawn for each image, with its level and sign."""

    kind: Int[Tensor, "b"]  # index into the list of operations
    level: Numbers  # 1 is full strength
    sign: Numbers  # -1 or 1


Operation = Callable[[Images, Choice], Images]


@dataclass(frozen=True)
class Space:
    """Search space of a policy: the strength of each operation at level 1."""

    shear: float
    right: float  # shift in pixels
    down: float
    degrees: float
    factor: float  # maximum difference from 1 of the brightness, contrast, saturation and sharpness factors
    bits: int  # number of bits removed by posterize

    def operations(self) -> list[Operation]:
        """Return the fourteen operations of RandAugment and TrivialAugment, which are drawn with equal probability."""

        def move(x: Images, drawn: Choice) -> Images:
            def amount(kind: int, most: float) -> Numbers:
                return (drawn.kind == kind) * (drawn.sign * drawn.level * most)

            return warp(
                x,
                amount(SHEAR_X, self.shear),
                amount(SHEAR_Y, self.shear),
                amount(RIGHT, self.right),
                amount(DOWN, self.down),
                amount(ROTATE, self.degrees),
            )

        def enhance(operation: Callable[[Images, Numbers], Images]) -> Operation:
            return lambda x, drawn: operation(x, (1 + drawn.sign * drawn.level * self.factor).clamp(min=0.01))

        return [
            keep,
            *[move] * 5,  # shear x, shear y, shift right, shift down and rotate share one kernel
            enhance(brightness),
            enhance(contrast),
            enhance(saturation),
            enhance(sharpness),
            lambda x, drawn: posterize(x, 8 - (drawn.level * self.bits).round()),
            lambda x, drawn: solarize(x, 256 * (1 - drawn.level)),
            lambda x, drawn: autocontrast(x),
            lambda x, drawn: equalize(x),
        ]


def keep(x: Images, drawn: Choice) -> Images:
    return x


def randaugment_space(size: Sequence[int]) -> Space:
    """Return AutoAugment's search space, as used by RandAugment. At level 1, shifts are 150/331 of the image size."""
    return Space(0.3, 150 / 331 * size[1], 150 / 331 * size[0], 30.0, 0.9, 4)


def trivial_space(size: Sequence[int]) -> Space:
    """Return TrivialAugment's wide search space. At level 1, shifts are 32 pixels, but at most the image size."""
    return Space(0.99, min(32, size[1]), min(32, size[0]), 135.0, 0.99, 6)


def randaugment(images: Images, rng: SampleRng, layers: int, magnitude: float) -> Images:
    """Apply `layers` random operations in sequence, with strength `magnitude` / 10."""
    operations = randaugment_space(images.shape[2:]).operations()
    for layer in range(layers):
        images = apply(images, operations, draw_randaugment(rng, layer, magnitude))
    return images


def draw_randaugment(rng: SampleRng, layer: int, magnitude: float) -> Choice:
    kind, sign = rng.uniform(f"randaugment {layer}", 2).unbind(1)
    return Choice((kind * 14).long(), torch.full_like(sign, magnitude / 10), _signs(sign))


def trivial(images: Images, rng: SampleRng) -> Images:
    """Apply one random operation with one of 31 random strengths."""
    return apply(images, trivial_space(images.shape[2:]).operations(), draw_trivial(rng))


def draw_trivial(rng: SampleRng) -> Choice:
    kind, level, sign = rng.uniform("trivial", 3).unbind(1)
    return Choice((kind * 14).long(), (level * 31).floor() / 30, _signs(sign))


def three(images: Images, rng: SampleRng) -> Images:
    """Apply one of DeiT-III's three operations: greyscale, solarize, or Gaussian blur with sigma from 0.1 to 2."""
    operations: list[Operation] = [
        lambda x, drawn: saturation(x, torch.zeros_like(drawn.level)),
        lambda x, drawn: solarize(x, torch.full_like(drawn.level, 128)),
        lambda x, drawn: blur(x, 0.1 + 1.9 * drawn.level),
    ]
    return apply(images, operations, draw_three(rng))


def draw_three(rng: SampleRng) -> Choice:
    kind, level = rng.uniform("three", 2).unbind(1)
    return Choice((kind * 3).long(), level, torch.ones_like(level))


def apply(images: Images, operations: list[Operation], drawn: Choice) -> Images:
    """Apply the sampled operation to each image. Runs of equal `operations` are processed as one batch."""
    counts = torch.bincount(drawn.kind, minlength=len(operations)).tolist()
    order = drawn.kind.argsort()
    kind, level, sign = (x[order].to(images.device, non_blocking=True) for x in drawn)
    order = order.to(images.device, non_blocking=True)
    result = images.clone()
    start = 0
    for operation, members in itertools.groupby(zip(operations, counts, strict=True), key=lambda pair: pair[0]):
        inside = slice(start, start + sum(count for _, count in members))
        start = inside.stop
        if inside.start < inside.stop and operation is not keep:
            group = order[inside]
            result[group] = operation(images[group], Choice(kind[inside], level[inside], sign[inside]))
    return result


def _signs(uniform: Numbers) -> Numbers:
    return torch.where(uniform < 0.5, -1.0, 1.0)
