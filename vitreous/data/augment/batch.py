"""Batch augmentation on the device: padded crop, flip, policy, colour jitter, random erasing, mixup and CutMix.

The random resized crop runs earlier, in the workers (vitreous.data.image.crop). The random numbers of an image do not
depend on the rest of its batch, and pixels stay uint8 until the end. The RNG runs on the CPU to avoid GPU syncs.

b: batch; c: channels; h, w: height and width; n: erased images.
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from vitreous.common.rng import SampleRng, hash_bits
from vitreous.data.augment.config import Augmentation, check_with_masks

Images = UInt8[Tensor, "b c h w"]
Numbers = Float[Tensor, "b"]

ERASED_AREA = (0.02, 1 / 3)  # range, as a fraction of the image
ERASED_ASPECT = (0.3, 1 / 0.3)
FILL = 128.0  # grey level outside the image after an affine transform, as in AutoAugment
SHEAR_X, SHEAR_Y, RIGHT, DOWN, ROTATE = range(1, 6)


def augment(images: Images, rng: SampleRng, config: Augmentation) -> Float[Tensor, "b c h w"]:
    """Apply the padded crop, flip, policy, colour jitter and random erasing of `config`. The result is in [0, 1]."""
    images = _crop_and_flip(images, rng, config)
    match config.policy:
        case "randaugment":
            images = randaugment(images, rng, config.policy_layers, config.policy_magnitude)
        case "trivial":
            images = trivial(images, rng)
        case "three":
            images = three(images, rng)
        case "none":
            pass
    if config.colour_jitter:
        numbers = rng.uniform("colour jitter", 4).to(images.device, non_blocking=True)
        factors = 1 + config.colour_jitter * (2 * numbers[:, :3] - 1)
        images = jitter(images, factors, (6 * numbers[:, 3]).long())
    if config.erasing:
        images = erase(images, rng, config.erasing)
    return images.float() / 255


def augment_with_masks(
    images: Images, masks: UInt8[Tensor, "b h w"], rng: SampleRng, config: Augmentation
) -> tuple[Float[Tensor, "b c h w"], UInt8[Tensor, "b h w"]]:
    """Augment images, and crop and flip their masks in the same way.

    Raise BadValue if `config` contains augmentations that are not implemented for masks. Masks are reflection-padded
    like images, and keep their labels in erased rectangles.
    """
    check_with_masks(config)
    return augment(images, rng, config), _crop_and_flip(masks[:, None], rng, config)[:, 0]


def _crop_and_flip(images: Images, rng: SampleRng, config: Augmentation) -> Images:
    images = images.contiguous()  # batches from the loader may be channels-last
    if config.crop == "padded":
        positions = rng.uniform("padded crop", 2).to(images.device, non_blocking=True)
        images = padded_crop(images, positions)
    if config.flip:
        images = flip(images, draw_flips(rng, config.flip).to(images.device, non_blocking=True))
    return images


# ---- Policies: RandAugment, TrivialAugment and 3-Augment -------------------------------------------------------------
#
# An operation is drawn for each image. Images with the same operation are processed together, so every image is read
# and written only once per layer. The drawn operations must be on the CPU for this grouping.


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


# ---- Random erasing (arXiv 1708.04896) -------------------------------------------------------------------------------


def erase(images: Images, rng: SampleRng, probability: float) -> Images:
    """Replace a random rectangle with uniform noise in each image, with the given probability.

    Unlike in the paper, a rectangle larger than the image is clipped instead of redrawn.
    """
    _, c, h, w = images.shape
    chosen = (rng.uniform("erasing") < probability).nonzero()[:, 0]
    area, aspect, top, left = rng.uniform("erasing box", 4)[chosen].to(images.device, non_blocking=True).unbind(1)
    high, low = (rng.uniform("erasing noise", 2) * 2**24).long().unbind(1)
    seeds = (high << 24 | low)[chosen].to(images.device, non_blocking=True)
    chosen = chosen.to(images.device, non_blocking=True)

    area = h * w * (ERASED_AREA[0] + area * (ERASED_AREA[1] - ERASED_AREA[0]))
    aspect = torch.exp(math.log(ERASED_ASPECT[0]) + aspect * math.log(ERASED_ASPECT[1] / ERASED_ASPECT[0]))
    inside_h = _interval(top, (area * aspect).sqrt().round().clamp(1, h), h)
    inside_w = _interval(left, (area / aspect).sqrt().round().clamp(1, w), w)
    inside = (inside_h[:, :, None] & inside_w[:, None, :])[:, None]
    result = images.clone()
    result[chosen] = torch.where(inside, noise(seeds, (c, h, w)), images[chosen])
    return result


def _interval(position: Float[Tensor, "n"], length: Float[Tensor, "n"], side: int) -> Tensor:
    """Return boolean masks [n, side] of intervals, given their lengths and their relative positions from 0 to 1."""
    start = (position * (side - length + 1)).floor()[:, None]
    at = torch.arange(side, device=position.device)
    return (at >= start) & (at < start + length[:, None])


def noise(seeds: Int[Tensor, "n"], shape: tuple[int, int, int]) -> UInt8[Tensor, "n c h w"]:
    """Generate random bytes that depend only on the seed and the pixel position."""
    count = math.prod(shape)
    counter = torch.arange(-(-count // 8), device=seeds.device)
    hashed = hash_bits(hash_bits(seeds)[:, None] + counter)
    return hashed.view(torch.uint8)[:, :count].reshape(-1, *shape)


# ---- Mixup and CutMix (arXiv 1710.09412, 1905.04899) -----------------------------------------------------------------
#
# Image i is mixed with its neighbour i ^ 1, with one weight per pair. If each process has an even number of images, the
# pairs do not depend on the number of processes.


def mix(
    images: Float[Tensor, "b c h w"],
    targets: Float[Tensor, "b classes"],
    rng: SampleRng,
    config: Augmentation,
    readable: Bool[Tensor, "b"] | None = None,
) -> tuple[Float[Tensor, "b c h w"], Float[Tensor, "b classes"]]:
    """Mix each pair of neighbouring images and their targets.

    If both mixup and CutMix are enabled, each pair is mixed by one of them, chosen with equal probability. Pairs with
    an image that is not `readable` are not mixed; by default, an all-zero target marks an unreadable image. In a batch
    of odd size, the last image is not mixed.
    """
    if not config.mixup and not config.cutmix:
        return images, targets
    b, _, h, w = images.shape
    # Both images of a pair use the random numbers of the first image.
    first = torch.arange(b, device=rng.keys.device) // 2 * 2
    kind, lam, y, x = rng.uniform("mix", 4)[first].unbind(1)
    cut = kind < (0.5 if config.mixup and config.cutmix else float(config.cutmix > 0))
    lam = torch.where(cut, beta(lam, config.cutmix or 1.0), beta(lam, config.mixup or 1.0))
    lam, y, x = (numbers.to(images.device, non_blocking=True) for numbers in (lam, y, x))
    cut = cut.to(images.device, non_blocking=True)

    # Per-pixel weight: 0 or 1 for CutMix, lambda everywhere for mixup.
    inside, outside = box(lam, y, x, (h, w))
    weight = torch.where(cut[:, None, None], 1 - inside.float(), lam[:, None, None])
    lam = torch.where(cut, outside, lam)

    here = torch.arange(b, device=images.device)
    partner = (here ^ 1).clamp(max=b - 1)
    readable = targets.sum(1) > 0 if readable is None else readable
    mixed = readable & readable[partner] & (partner != here)
    weight = torch.where(mixed[:, None, None], weight, 1)[:, None].to(images.dtype)
    lam = torch.where(mixed, lam, 1)[:, None].to(targets.dtype)
    return torch.lerp(images[partner], images, weight), torch.lerp(targets[partner], targets, lam)


def box(
    lam: Float[Tensor, "b"], y: Float[Tensor, "b"], x: Float[Tensor, "b"], size: tuple[int, int]
) -> tuple[Bool[Tensor, "b h w"], Float[Tensor, "b"]]:
    """Return CutMix's rectangles as masks, and the fraction of each image outside its rectangle.

    A rectangle has the aspect ratio of the image and a fraction 1 - `lam` of its area. `y` and `x` are the relative
    coordinates of the centre, from 0 to 1. Rectangles are clipped at the borders of the image.
    """

    def interval(centre: Tensor, side: int) -> Tensor:
        half = ((1 - lam).sqrt() * side).floor() // 2
        middle = (centre * side).floor()
        at = torch.arange(side, device=lam.device)
        return (at >= (middle - half)[:, None]) & (at < (middle + half)[:, None])

    rows, columns = interval(y, size[0]), interval(x, size[1])
    covered = rows.sum(1) * columns.sum(1)
    return rows[:, :, None] & columns[:, None, :], 1 - covered / (size[0] * size[1])


def beta(uniform: Float[Tensor, "b"], a: float) -> Float[Tensor, "b"]:
    """Map uniform numbers to samples from Beta(a, a) with a table of the inverse CDF."""
    table = _quantiles(a).to(uniform.device)
    lower = torch.minimum(uniform, 1 - uniform)  # the distribution is symmetric about 1/2
    at = lower * (2 * (len(table) - 1))
    index = at.long().clamp(max=len(table) - 2)
    below = torch.lerp(table[index], table[index + 1], at - index) ** (1 / min(a, 1))
    return torch.where(uniform < 0.5, below, 1 - below)


@functools.lru_cache(16)
def _quantiles(a: float) -> Float[Tensor, "n"]:
    """Tabulate t = x^min(a, 1) for the quantiles x of Beta(a, a), at evenly spaced probabilities from 0 to 1/2.

    For a < 1 the density x^(a-1) (1-x)^(a-1) has a pole at 0. The density of t, (1-x)^(a-1) / a, is nearly constant
    there, which makes integration and interpolation accurate.
    """
    power = min(a, 1)
    t = torch.linspace(0, 0.5**power, 8193, dtype=torch.float64)
    x = t ** (1 / power)
    density = x ** (a - power) * (1 - x) ** (a - 1)
    probability = torch.zeros_like(t)
    probability[1:] = torch.cumsum(density[1:] + density[:-1], 0)
    probability /= 2 * probability[-1].clone()
    wanted = torch.linspace(0, 0.5, 4097, dtype=torch.float64)
    index = torch.searchsorted(probability, wanted).clamp(1, len(t) - 1)
    left, right = probability[index - 1], probability[index]
    return torch.lerp(t[index - 1], t[index], (wanted - left) / (right - left)).float()


def _per_image(numbers: Tensor) -> Tensor:
    return numbers[:, None, None, None]


def _to_uint8(images: Tensor) -> Images:
    return images.round().clamp(0, 255).to(torch.uint8)


# ---- Geometry --------------------------------------------------------------------------------------------------------


def draw_flips(rng: SampleRng, flip: float | Literal["alternate"]) -> Bool[Tensor, "b"]:
    """Return True for each image to flip (see `Augmentation.flip`)."""
    if flip == "alternate":
        return (rng.in_epoch(0).uniform("flip") < 0.5) ^ bool(rng.epoch % 2)
    return rng.uniform("flip") < flip


def flip(images: Images, which: Bool[Tensor, "b"]) -> Images:
    """Flip the images selected by `which` horizontally."""
    return torch.where(_per_image(which), images.flip(-1), images)


def padded_crop(images: Images, positions: Float[Tensor, "b 2"]) -> Images:
    """Shift each image by up to an eighth of its size: reflection-pad all sides, then crop to the original size.

    `positions` contains the relative top and left of each crop, from 0 to 1.
    """
    b, _, h, w = images.shape
    pad_h, pad_w = h // 8, w // 8
    padded = F.pad(images, (pad_w, pad_w, pad_h, pad_h), mode="reflect")
    windows = padded.unfold(2, h, 1).unfold(3, w, 1)  # [b, c, tops, lefts, h, w], a view
    top, left = ((positions[:, i] * windows.shape[2 + i]).long() for i in range(2))
    return windows[torch.arange(b, device=images.device), :, top, left]


def warp(
    images: Images,
    shear_x: Numbers | float = 0,
    shear_y: Numbers | float = 0,
    right: Numbers | float = 0,
    down: Numbers | float = 0,
    degrees: Numbers | float = 0,
) -> Images:
    """Shear, shift (by whole pixels) or rotate (counter-clockwise about the centre) each image.

    At most one of the parameters may be non-zero for an image. As in AutoAugment, a shear moves rows (or columns) in
    proportion to their distance from the top (or left). The affine matrix maps output to input pixels, relative to the
    centre; sampling is bilinear.
    """
    count, _, h, w = images.shape
    shear_x, shear_y, right, down, degrees = (
        x.float() if isinstance(x, Tensor) else torch.full((count,), float(x), device=images.device)
        for x in (shear_x, shear_y, right, down, degrees)
    )
    sine, cosine = degrees.deg2rad().sin(), degrees.deg2rad().cos()
    to_x = (cosine, shear_x - sine, shear_x * (h / 2) - right.trunc())
    to_y = (shear_y + sine, cosine, shear_y * (w / 2) - down.trunc())
    x = torch.arange(w, device=images.device) + 0.5 - w / 2
    y = torch.arange(h, device=images.device)[:, None] + 0.5 - h / 2
    # Not a matmul, which a GPU may compute in TF32 with errors of a tenth of a pixel.
    from_x, from_y = (a[:, None, None] * x + b[:, None, None] * y + c[:, None, None] for a, b, c in (to_x, to_y))
    grid = torch.stack([from_x * (2 / w), from_y * (2 / h)], dim=-1)  # grid_sample expects [-1, 1]
    sampled = F.grid_sample(images.float() - FILL, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return (sampled + FILL).round().to(torch.uint8)


# ---- Blending: factor 0 gives the degenerate image, 1 the original; above 1 extrapolates -----------------------------


def _blend(degenerate: Tensor, images: Tensor, factor: Numbers) -> Tensor:
    return degenerate + (images - degenerate) * _per_image(factor)


def luma(images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b 1 h w"]:
    """Compute ITU-R 601 luma, or the channel mean of images that are not RGB."""
    if images.shape[1] != 3:
        return images.mean(1, keepdim=True)
    red, green, blue = images.unbind(1)
    return (0.299 * red + 0.587 * green + 0.114 * blue)[:, None]


def brightness(images: Images, factor: Numbers) -> Images:
    return _to_uint8(images * _per_image(factor))


def contrast(images: Images, factor: Numbers) -> Images:
    """Scale the contrast by blending with the mean luma."""
    x = images.float()
    return _to_uint8(_blend(luma(x).mean((2, 3), keepdim=True).round(), x, factor))


def saturation(images: Images, factor: Numbers) -> Images:
    """Scale the saturation by blending with the greyscale image."""
    x = images.float()
    return _to_uint8(_blend(luma(x), x, factor))


def sharpness(images: Images, factor: Numbers) -> Images:
    """Scale the sharpness by blending with a smoothed image, except at the border.

    The smoothing kernel is (1 1 1, 1 5 1, 1 1 1) / 13.
    """
    if min(images.shape[2:]) < 3:
        return images
    x = images.float()
    inner = x[:, :, 1:-1, 1:-1]
    smooth = (9 * F.avg_pool2d(x, 3, stride=1) + 4 * inner) / 13
    sharpened = images.clone()
    sharpened[:, :, 1:-1, 1:-1] = _to_uint8(_blend(smooth.round(), inner, factor))
    return sharpened


def jitter(images: Images, factors: Float[Tensor, "b 3"], order: Int[Tensor, "b"]) -> Images:
    """Scale brightness, contrast and saturation by `factors`, in one of six orders: `order` is from 0 to 5."""
    orders = torch.tensor([[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]])
    orders = orders.to(images.device, non_blocking=True)
    x = images.float()
    for which in orders[order].unbind(1):
        grey = luma(x)
        degenerate = torch.where(_per_image(which == 2), grey, grey.mean((2, 3), keepdim=True) * _per_image(which == 1))
        x = _blend(degenerate, x, factors.gather(1, which[:, None])[:, 0]).clamp(0, 255)
    return _to_uint8(x)


# ---- Tone ------------------------------------------------------------------------------------------------------------


def posterize(images: Images, bits: Numbers) -> Images:
    """Keep only the `bits` most significant bits of each value."""
    return images & _per_image(256 - 2 ** (8 - bits)).to(torch.uint8)


def solarize(images: Images, threshold: Numbers) -> Images:
    """Invert values at or above the threshold."""
    return torch.where(images >= _per_image(threshold), 255 - images, images)


def autocontrast(images: Images) -> Images:
    """Stretch the values of each channel to the range 0 to 255."""
    low, high = (extreme((2, 3), keepdim=True).float() for extreme in (images.amin, images.amax))
    flat = high <= low
    scale = torch.where(flat, 1, 255 / (high - low))
    return ((images - torch.where(flat, 0, low)) * scale + 1e-3).to(torch.uint8)  # truncated, as in Pillow


def equalize(images: Images) -> Images:
    """Equalise the histogram of each channel."""
    b, c, h, w = images.shape
    values = images.reshape(b * c, h * w).long()
    histogram = torch.zeros(b * c, 256, dtype=torch.long, device=images.device)
    histogram.scatter_add_(1, values, torch.ones_like(values))
    brightest = histogram.gather(1, values.amax(1, keepdim=True))
    step = (h * w - brightest) // 255  # target number of pixels per level
    below = histogram.cumsum(1) - histogram
    table = ((below + step // 2) // step.clamp(min=1)).clamp(max=255)
    table = torch.where(step == 0, torch.arange(256, device=images.device), table)  # too few pixels to equalise
    return table.gather(1, values).to(torch.uint8).reshape(b, c, h, w)


# ---- Filters ---------------------------------------------------------------------------------------------------------


def blur(images: Images, sigma: Numbers) -> Images:
    """Apply a Gaussian blur as two matrix products. Each matrix row is a softmax over negative squared distances."""

    def kernels(n: int) -> Tensor:
        at = torch.arange(n, device=images.device, dtype=torch.float32)
        return (-((at[:, None] - at) ** 2) / (2 * sigma**2)[:, None, None]).softmax(-1)[:, None]

    _, _, h, w = images.shape
    return _to_uint8(kernels(h) @ images.float() @ kernels(w).mT)
