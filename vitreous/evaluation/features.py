"""What a frozen encoder makes of every picture of a source: one vector each, computed once, for all probes.

Pictures go through the reader and the preprocessing that `eval` uses, so a probe and an evaluation see the same pixels.

n: pictures; d: width of the features; b: batch; c: channels; h, w: height and width.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitreous.common.checks import check_choice, fail
from vitreous.data.loader import BatchSlice, EvalLoader, Reader
from vitreous.data.sources.base import Source
from vitreous.model.inputs import normalise
from vitreous.model.options import ClassToken
from vitreous.model.resnet import ResNet
from vitreous.model.vit import ViT

Kind = Literal["pooled", "class+mean"]
KINDS: tuple[Kind, ...] = ("pooled", "class+mean")
BUDGET = 512 << 20  # bytes of temporary tensors that a probe may have at a time, beside features and weights


@dataclass(frozen=True)
class FeatureSet:
    """The readable pictures of a source as vectors, on the CPU. `problems` names the others, and says why."""

    features: Float[Tensor, "n d"]  # float32, or float16 where they were computed in bfloat16
    labels: Int[Tensor, "n"]
    problems: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    def pick(self, indices: Int[Tensor, "m"]) -> "FeatureSet":
        return FeatureSet(self.features[indices], self.labels[indices])


@torch.no_grad()
def extract(
    model: ViT | ResNet,
    source: Source,
    device: torch.device,
    precision: torch.dtype = torch.float32,
    *,
    kind: Kind = "pooled",
    batch_size: int = 64,
    workers: int = 2,
    flip: bool = False,
) -> FeatureSet:
    """The features of a source, by a model that is on `device`. `flip` averages with the mirror image's.

    kind: "pooled" is what the head gets: the class token after the norm, the mean of the patches, or whatever else the
        model pools by. "class+mean" is the class token beside the mean of the patches, as DINOv2 is probed.

    The vectors of a million pictures fit: 3 GB at a width of 768, half of it in bfloat16.
    """
    represent = _representation(model, kind)
    config, before = model.config, model.training
    reader = Reader(source, config.image_size, config.channels, config.preprocessing)
    # bfloat16 has 8 bits of precision and float16 has 11: nothing is lost but the range, which is checked below.
    mixed, stored = precision != torch.float32, torch.float32 if precision == torch.float32 else torch.float16
    labels, problems, features = torch.empty(len(source), dtype=torch.int64), [], torch.empty(0)
    model.eval()
    for batch in EvalLoader(reader, BatchSlice(batch_size), workers):
        images = normalise(batch.images.to(device, non_blocking=True).float() / 255, config.preprocessing)
        with torch.autocast(device.type, precision if mixed else torch.bfloat16, enabled=mixed):
            vectors = represent(images).float()
            if flip:
                vectors = (vectors + represent(images.flip(-1)).float()) / 2
        if not len(features):  # the first batch says how wide they are
            features = torch.empty(len(source), vectors.shape[1], dtype=stored)
        features[batch.indices] = vectors.to(stored).cpu()
        labels[batch.indices] = batch.labels
        problems += batch.problems
    model.train(before)
    if problems:
        readable = labels >= 0
        features, labels = features[readable], labels[readable]
    _check(features, len(source), stored)
    return FeatureSet(features, labels, tuple(problems))


def _representation(model: ViT | ResNet, kind: Kind) -> Callable[[Float[Tensor, "b c h w"]], Float[Tensor, "b d"]]:
    check_choice("features", kind, KINDS)
    if isinstance(model, ResNet):
        if kind != "pooled":
            fail("features", kind, "'pooled' for a ResNet, which has no class token")
        return lambda images: model.feature_map(images).mean(dim=(2, 3))
    if kind == "pooled":
        return lambda images: model.pool(model.features(images))
    if not isinstance(model.config.pool, ClassToken):  # where nothing reads the class token, nothing taught it
        fail("features", kind, f"'pooled' for a model that pools by {type(model.config.pool).__name__}")
    return partial(_class_and_mean, model)


def _class_and_mean(model: ViT, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d"]:
    features = model.features(images)
    return torch.cat([features.prefix[:, 0], features.patches.mean(dim=1)], dim=1)


def _check(features: Tensor, pictures: int, stored: torch.dtype) -> None:
    if not len(features):
        raise ValueError(f"there is nothing to probe: none of the {pictures} pictures could be read")
    broken = sum(int((~features[rows].isfinite().all(dim=1)).sum()) for rows in slices(len(features), 4096))
    if broken:
        hint = ", or too large for bfloat16: try --precision fp32" if stored == torch.float16 else ""
        raise ValueError(f"the features of {broken} of {len(features)} pictures are infinite or not a number{hint}")


def slices(count: int, rows: int) -> Iterator[slice]:
    """From 0 to count, so many rows at a time.

    >>> list(slices(5, 3))
    [slice(0, 3, None), slice(3, 5, None)]
    """
    return (slice(start, min(start + rows, count)) for start in range(0, count, rows))
