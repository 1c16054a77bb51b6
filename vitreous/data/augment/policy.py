"""Augmentation policies: RandAugment, TrivialAugment and 3-Augment, with operations drawn for each image.

Images with the same operation are processed together, so that each is read and written once per layer. Grouping needs
the drawn operations: with the RNG on the CPU, no GPU is waited for.

b: batch, c: channels, h, w: height and width.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from vitreous.data.augment import transforms
from vitreous.data.rng import SampleRng

Images = UInt8[Tensor, "b c h w"]
Numbers = Float[Tensor, "b"]
SHEAR_X, SHEAR_Y, RIGHT, DOWN, ROTATE = range(1, 6)


class Choice(NamedTuple):
    """The operation drawn for each image."""

    kind: Int[Tensor, "b"]  # index into the list of operations
    level: Numbers  # 1 is full strength
    sign: Numbers  # -1 or 1


Operation = Callable[[Images, Choice], Images]


@dataclass(frozen=True)
class Space:
    """Strength of the operations at level 1."""

    shear: float
    right: float  # pixels
    down: float
    degrees: float
    factor: float  # of brightness, contrast, saturation and sharpness: distance from 1
    bits: int  # removed by posterize

    def operations(self) -> list[Operation]:
        """The fourteen operations that both papers draw from, with equal probability."""

        def warp(x: Images, drawn: Choice) -> Images:
            def amount(kind: int, most: float) -> Numbers:
                return (drawn.kind == kind) * (drawn.sign * drawn.level * most)

            return transforms.warp(
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
            *[warp] * 5,  # in the order of SHEAR_X and so on, all at once
            enhance(transforms.brightness),
            enhance(transforms.contrast),
            enhance(transforms.saturation),
            enhance(transforms.sharpness),
            lambda x, drawn: transforms.posterize(x, 8 - (drawn.level * self.bits).round()),
            lambda x, drawn: transforms.solarize(x, 256 * (1 - drawn.level)),
            lambda x, drawn: transforms.autocontrast(x),
            lambda x, drawn: transforms.equalize(x),
        ]


def keep(x: Images, drawn: Choice) -> Images:
    return x


def randaugment_space(size: Sequence[int]) -> Space:
    """AutoAugment's space, which RandAugment uses; shifts are 150 pixels of 331."""
    return Space(0.3, 150 / 331 * size[1], 150 / 331 * size[0], 30.0, 0.9, 4)


def trivial_space(size: Sequence[int]) -> Space:
    """TrivialAugment's wide space; shifts are 32 pixels, or the whole of a smaller image."""
    return Space(0.99, min(32, size[1]), min(32, size[0]), 135.0, 0.99, 6)


def randaugment(images: Images, rng: SampleRng, layers: int, magnitude: float) -> Images:
    """Apply `layers` operations in sequence, all of strength `magnitude` (of 10)."""
    operations = randaugment_space(images.shape[2:]).operations()
    for layer in range(layers):
        images = apply(images, operations, draw_randaugment(rng, layer, magnitude))
    return images


def draw_randaugment(rng: SampleRng, layer: int, magnitude: float) -> Choice:
    kind, sign = rng.uniform(f"randaugment {layer}", 2).unbind(1)
    return Choice((kind * 14).long(), torch.full_like(sign, magnitude / 10), _signs(sign))


def trivial(images: Images, rng: SampleRng) -> Images:
    """Apply one operation of one of 31 strengths."""
    return apply(images, trivial_space(images.shape[2:]).operations(), draw_trivial(rng))


def draw_trivial(rng: SampleRng) -> Choice:
    kind, level, sign = rng.uniform("trivial", 3).unbind(1)
    return Choice((kind * 14).long(), (level * 31).floor() / 30, _signs(sign))


def three(images: Images, rng: SampleRng) -> Images:
    """Apply one of DeiT-III's three: greyscale, solarize, or blur by a sigma from 0.1 to 2 pixels."""
    operations: list[Operation] = [
        lambda x, drawn: transforms.saturation(x, torch.zeros_like(drawn.level)),
        lambda x, drawn: transforms.solarize(x, torch.full_like(drawn.level, 128)),
        lambda x, drawn: transforms.blur(x, 0.1 + 1.9 * drawn.level),
    ]
    return apply(images, operations, draw_three(rng))


def draw_three(rng: SampleRng) -> Choice:
    kind, level = rng.uniform("three", 2).unbind(1)
    return Choice((kind * 3).long(), level, torch.ones_like(level))


def apply(images: Images, operations: list[Operation], drawn: Choice) -> Images:
    """Apply to each image the operation of its kind; equal neighbours in the list are applied together."""
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
