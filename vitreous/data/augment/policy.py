"""Which operations, and how strong: RandAugment, TrivialAugment and 3-Augment, drawn for each picture by itself.

Pictures with the same operation are handled together, so that each is read and written once per layer, whatever the
number of operations. Grouping needs to know the choice: where `draws` are on the CPU no GPU is waited for.

b: batch, c: channels, h, w: height and width.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from vitreous.common.checks import Size
from vitreous.data.augment import colour, geometry
from vitreous.data.rng import Draws

Images = UInt8[Tensor, "b c h w"]
Numbers = Float[Tensor, "b"]
SHEAR_X, SHEAR_Y, RIGHT, DOWN, ROTATE = range(1, 6)


class Choice(NamedTuple):
    """What is drawn for each picture."""

    kind: Int[Tensor, "b"]  # which operation of the list
    level: Numbers  # 1 is full strength
    sign: Numbers  # -1 or 1


Operation = Callable[[Images, Choice], Images]


@dataclass(frozen=True)
class Space:
    """How far the operations go at level 1."""

    shear: float
    right: float  # pixels
    down: float
    degrees: float
    factor: float  # brightness, contrast, saturation and sharpness: this far from 1
    bits: int  # that posterising takes away

    def operations(self) -> list[Operation]:
        """The fourteen that both papers draw from, all with the same probability."""

        def move(x: Images, drawn: Choice) -> Images:
            def where(kind: int, most: float) -> Numbers:
                return (drawn.kind == kind) * (drawn.sign * drawn.level * most)

            return geometry.warp(
                x,
                where(SHEAR_X, self.shear),
                where(SHEAR_Y, self.shear),
                where(RIGHT, self.right),
                where(DOWN, self.down),
                where(ROTATE, self.degrees),
            )

        def enhance(operation: Callable[[Images, Numbers], Images]) -> Operation:
            return lambda x, drawn: operation(x, (1 + drawn.sign * drawn.level * self.factor).clamp(min=0.01))

        return [
            keep,
            *[move] * 5,  # in the order of SHEAR_X and so on, all at once
            enhance(colour.brightness),
            enhance(colour.contrast),
            enhance(colour.saturation),
            enhance(colour.sharpness),
            lambda x, drawn: colour.posterize(x, 8 - (drawn.level * self.bits).round()),
            lambda x, drawn: colour.solarize(x, 256 * (1 - drawn.level)),
            lambda x, drawn: colour.autocontrast(x),
            lambda x, drawn: colour.equalize(x),
        ]


def keep(x: Images, drawn: Choice) -> Images:
    return x


def randaugment_space(size: Size) -> Space:
    """AutoAugment's, which RandAugment takes over; shifts are 150 pixels of 331."""
    return Space(0.3, 150 / 331 * size[1], 150 / 331 * size[0], 30.0, 0.9, 4)


def trivial_space(size: Size) -> Space:
    """TrivialAugment's wide space. Shifts are 32 pixels, or the whole of a smaller picture."""
    return Space(0.99, min(32, size[1]), min(32, size[0]), 135.0, 0.99, 6)


def randaugment(images: Images, draws: Draws, layers: int, magnitude: float) -> Images:
    """`layers` operations after each other, all of strength `magnitude` (of 10)."""
    operations = randaugment_space(_size(images)).operations()
    for layer in range(layers):
        images = apply(images, operations, draw_randaugment(draws, layer, magnitude))
    return images


def draw_randaugment(draws: Draws, layer: int, magnitude: float) -> Choice:
    kind, sign = draws.uniform(f"randaugment {layer}", 2).unbind(1)
    return Choice(_kinds(kind, 14), torch.full_like(sign, magnitude / 10), _signs(sign))


def trivial(images: Images, draws: Draws) -> Images:
    """One operation, of one of 31 strengths."""
    return apply(images, trivial_space(_size(images)).operations(), draw_trivial(draws))


def draw_trivial(draws: Draws) -> Choice:
    kind, level, sign = draws.uniform("trivial", 3).unbind(1)
    return Choice(_kinds(kind, 14), (level * 31).floor() / 30, _signs(sign))


def three(images: Images, draws: Draws) -> Images:
    """DeiT-III's: grey, solarised, or blurred by a sigma from 0.1 to 2 pixels."""
    operations: list[Operation] = [
        lambda x, drawn: colour.saturation(x, torch.zeros_like(drawn.level)),
        lambda x, drawn: colour.solarize(x, torch.full_like(drawn.level, 128)),
        lambda x, drawn: colour.blur(x, 0.1 + 1.9 * drawn.level),
    ]
    return apply(images, operations, draw_three(draws))


def draw_three(draws: Draws) -> Choice:
    kind, level = draws.uniform("three", 2).unbind(1)
    return Choice(_kinds(kind, 3), level, torch.ones_like(level))


def apply(images: Images, operations: list[Operation], drawn: Choice) -> Images:
    """To each picture the operation of its kind. Neighbours in the list that are the same are applied together."""
    counts = torch.bincount(drawn.kind, minlength=len(operations)).tolist()
    order = drawn.kind.argsort()
    kind, level, sign = (x[order].to(images.device, non_blocking=True) for x in drawn)
    order = order.to(images.device, non_blocking=True)
    result = images.clone()
    start = 0
    for operation, members in itertools.groupby(zip(operations, counts, strict=True), key=lambda pair: pair[0]):
        part = slice(start, start + sum(count for _, count in members))
        start = part.stop
        if part.start < part.stop and operation is not keep:
            group = order[part]
            result[group] = operation(images[group], Choice(kind[part], level[part], sign[part]))
    return result


def _size(images: Images) -> Size:
    return (images.shape[2], images.shape[3])


def _kinds(uniform: Numbers, count: int) -> Int[Tensor, "b"]:
    return (uniform * count).long()


def _signs(uniform: Numbers) -> Numbers:
    return torch.where(uniform < 0.5, -1.0, 1.0)
