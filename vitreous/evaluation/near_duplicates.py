"""Finds near duplicates: copies of the same photo that were resized, recompressed, cropped or mirrored.

Candidates are nearest neighbours in whitened feature space. A pair is accepted if one image, resized and possibly
mirrored, is found inside the other, i.e. if the normalised cross-correlation of their details is high at the best
position and size. Features alone cannot distinguish two photos of the same cat from two copies of one photo.

n: images; d: feature width; p: pairs; s: side of a thumbnail.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from vitreous.common.threads import map_in_threads
from vitreous.data.image import UnreadableImage, decode, resize
from vitreous.data.image.decoding import ValueRange
from vitreous.data.sources.base import StoredImage
from vitreous.evaluation import features
from vitreous.evaluation.features import rows_within_budget, slices
from vitreous.evaluation.probe import PAIR_BYTES, nearest

SIDE = 32  # side of the thumbnails that are compared, in pixels
BLUR = 7  # side of the neighbourhood whose mean is subtracted to obtain the details
AREAS = (1.0, 0.93, 0.86, 0.79, 0.72, 0.65, 0.58)  # areas of crops, as fractions of the image
CANDIDATES = 5  # number of nearest neighbours to compare with each image
SIMILARITY = 0.1  # minimum cosine similarity of the whitened features of a candidate pair
RIDGE = 0.03  # fraction of the largest std that is added to every std before dividing by it
CORRELATION = 0.7  # minimum correlation of details; different photos rarely exceed 0.5
CHUNK = 512  # number of pairs to compare at a time


@dataclass(frozen=True)
class Neighbours:
    """The nearest neighbours of each image, nearest first. An image is not its own neighbour."""

    similarity: Float[Tensor, "n k"]  # cosine
    indices: Int[Tensor, "n k"]


def neighbours(vectors: Float[Tensor, "n d"], k: int, device: torch.device) -> Neighbours:
    """Find the k nearest neighbours of each image, in blocks that limit the memory use."""
    count, width = vectors.shape
    k = min(k, count - 1)
    budget = features.BUDGET
    rows = max(1, min(math.isqrt(budget // 2 // PAIR_BYTES), budget // (32 * width)))
    results = []
    for block in slices(count, rows):
        similarity, indices = nearest(vectors[block].to(device), vectors, k + 1, rows)
        own = indices == torch.arange(block.start, block.stop, device=device)[:, None]
        own[:, -1] |= ~own.any(dim=1)  # if identical images rank before the image itself, drop the last neighbour
        keep = ~own
        results.append((similarity[keep].view(-1, k).cpu(), indices[keep].view(-1, k).cpu()))
    return Neighbours(*(torch.cat(parts) for parts in zip(*results, strict=True)))


def whitened(vectors: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """Scale features so that all principal components have nearly the same variance.

    The largest components describe the kind of image, such as its class. Copies also agree in the small components.
    """
    count, width = vectors.shape
    parts = list(slices(count, rows_within_budget(width)))
    mean = sum((vectors[part].double().sum(dim=0) for part in parts), torch.zeros(width, dtype=torch.float64)) / count
    covariance = torch.zeros(width, width, dtype=torch.float64)
    for part in parts:
        centred = vectors[part].double() - mean
        covariance.addmm_(centred.T, centred, alpha=1 / count)
    variances, components = torch.linalg.eigh(covariance)
    std = variances.clamp(min=0).sqrt()
    components /= std + RIDGE * std.max().clamp(min=1e-12)
    return torch.cat([((vectors[part].double() - mean) @ components).float() for part in parts])


def candidate_pairs(vectors: Float[Tensor, "n d"], device: torch.device) -> Int[Tensor, "p 2"]:
    """Return the pairs of nearest neighbours that may be near duplicates, sorted and without repetitions."""
    near = neighbours(whitened(vectors), CANDIDATES, device)
    rows, columns = (near.similarity >= SIMILARITY).nonzero(as_tuple=True)
    low, high = torch.stack([rows, near.indices[rows, columns]]).sort(dim=0).values.tolist()
    pairs = sorted(set(zip(low, high, strict=True)))
    return torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)


# ---- Comparison of pixels --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Thumbnail:
    """Greyscale image resized to a square, and the aspect ratio (height / width) of the original image."""

    pixels: np.ndarray  # uint8 [s, s]
    aspect: float


def thumbnail(image: Callable[[], StoredImage], value_range: ValueRange | None = None) -> Thumbnail | None:
    """Return the thumbnail of an image, or None if it is unreadable."""
    try:
        pixels = decode(image(), 1, (2 * SIDE, 2 * SIDE), value_range)
    except (UnreadableImage, OSError):
        return None
    return Thumbnail(resize(pixels, (SIDE, SIDE), "bilinear")[0].numpy(), pixels.shape[1] / pixels.shape[2])


def correlations(
    pairs: Int[Tensor, "p 2"],
    image: Callable[[int], StoredImage],
    device: torch.device,
    value_range: ValueRange | None = None,
) -> Float[Tensor, "p"]:
    """Return the correlation of the details of each pair of images, or -1 if one of the images is unreadable."""
    used = sorted(set(pairs.flatten().tolist()))
    thumbnails = map_in_threads(lambda index: thumbnail(lambda: image(index), value_range), used, "comparing images")
    shown = {index: found for index, found in zip(used, thumbnails, strict=True) if found is not None}
    result = torch.full((len(pairs),), -1.0)
    readable = torch.tensor([a in shown and b in shown for a, b in pairs.tolist()], dtype=torch.bool)
    rows = readable.nonzero()[:, 0]
    for part in slices(len(rows), CHUNK):
        sides = [
            (
                torch.from_numpy(np.stack([shown[index].pixels for index in column])).to(device),
                torch.tensor([shown[index].aspect for index in column], device=device),
            )
            for column in pairs[rows[part]].T.tolist()
        ]
        result[rows[part]] = correlation(*sides[0], *sides[1]).cpu()
    return result


def correlation(
    first: Tensor, first_aspect: Float[Tensor, "p"], second: Tensor, second_aspect: Float[Tensor, "p"]
) -> Float[Tensor, "p"]:
    """Return the highest correlation of each pair over all crops of either image, with and without mirroring."""
    a, b = details(first), details(second)
    ratio = second_aspect / first_aspect
    best = [
        inside(large, template, relative)
        for mirrored in (b, b.flip(-1))
        for large, template, relative in ((a, mirrored, ratio), (mirrored, a, 1 / ratio))
    ]
    return torch.stack(best).amax(dim=0)


def details(thumbnails: Tensor) -> Float[Tensor, "p s s"]:
    """Subtract the mean of each pixel's neighbourhood, to remove lighting and large uniform areas."""
    pixels = thumbnails.float()[:, None]
    blurred = F.avg_pool2d(pixels, BLUR, stride=1, padding=BLUR // 2, count_include_pad=False)
    return (pixels - blurred)[:, 0]


def shapes(ratio: Float[Tensor, "p"]) -> Iterator[Int[Tensor, "p 2"]]:
    """Yield the possible sizes in pixels of a crop of the square thumbnail.

    `ratio` is the aspect ratio of the crop divided by that of the image. The first size is the whole image, which also
    finds copies that were resized to another aspect ratio.
    """
    yield torch.full((len(ratio), 2), SIDE, device=ratio.device)
    for area in AREAS:
        sides = torch.stack([(area * ratio).sqrt(), (area / ratio).sqrt()], dim=1)
        yield (sides * SIDE).round().clamp(SIDE // 2, SIDE).long()


def inside(
    image: Float[Tensor, "p s s"], template: Float[Tensor, "p s s"], ratio: Float[Tensor, "p"]
) -> Float[Tensor, "p"]:
    """Return the highest correlation of a template, resized to one of its possible `shapes`, with a part of an image.

    Sums over all positions of the template are computed at once, in the frequency domain.
    """
    steps = torch.arange(SIDE, device=image.device)
    spectrum, power = torch.fft.rfft2(image), torch.fft.rfft2(image.square())
    best = image.new_full((len(image),), -1)
    for shape in shapes(ratio):
        height, width = shape[:, 0, None], shape[:, 1, None]
        mask = ((steps < height)[:, :, None] & (steps < width)[:, None, :]).float()
        area = mask.sum(dim=(1, 2), keepdim=True)
        # Sample the template at pixel centres; outside `shape`, the canvas is zero.
        y, x = ((2 * steps + 1) / side - 1 for side in (height, width))
        grid = torch.stack([x[:, None, :].expand(-1, SIDE, -1), y[:, :, None].expand(-1, -1, SIDE)], dim=-1)
        resized = F.grid_sample(template[:, None], grid, padding_mode="border", align_corners=False)[:, 0] * mask
        resized = (resized - resized.sum(dim=(1, 2), keepdim=True) / area) * mask
        under = torch.fft.rfft2(mask).conj()
        products = (spectrum * torch.fft.rfft2(resized).conj(), spectrum * under, power * under)
        product, total, squares = (torch.fft.irfft2(term, s=(SIDE, SIDE)) for term in products)
        variance = (squares - total.square() / area) * resized.square().sum(dim=(1, 2), keepdim=True)
        scores = product / variance.clamp(min=area.square()).sqrt()  # a std below 1 means no details
        fits = (steps <= SIDE - height)[:, :, None] & (steps <= SIDE - width)[:, None, :]
        best = best.maximum(scores.masked_fill(~fits, -1).amax(dim=(1, 2)))
    return best


def groups(pairs: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Join pairs that share an image into groups of sorted indices."""
    parent: dict[int, int] = {}

    def root(index: int) -> int:
        while parent.setdefault(index, index) != index:
            parent[index] = index = parent[parent[index]]
        return index

    for a, b in pairs:
        parent[root(b)] = root(a)
    members: dict[int, list[int]] = {}
    for index in sorted(parent):
        members.setdefault(root(index), []).append(index)
    return list(members.values())
