"""Models that are looked into, and one picture in front of one of them: what every number of the page is made from.

c: channels; h, w: image height and width.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from vitreous.common.checks import Size
from vitreous.data.image import fit, size_of
from vitreous.explanation.capture import Walk, walked
from vitreous.explanation.seen_region import Box, seen_part
from vitreous.inference.device import placed
from vitreous.model.inputs import normalise
from vitreous.model.resnet import ResNet
from vitreous.model.segmenter import Segmenter
from vitreous.model.vit import ViT
from vitreous.serving.errors import ApiError
from vitreous.serving.inspect.lru_cache import Shelf
from vitreous.serving.inspect.worker import Step
from vitreous.serving.models import Served

T = TypeVar("T")


@dataclass(frozen=True)
class Looked:
    """A model that is served, in float32 whatever it is served in: maps multiply small numbers through all layers."""

    id: str
    model: ViT | ResNet | Segmenter
    labels: tuple[str, ...]

    @property
    def vit(self) -> ViT:
        """What has attention: the model, or a segmenter's encoder."""
        model = self.model.encoder if isinstance(self.model, Segmenter) else self.model
        if not isinstance(model, ViT):
            raise ApiError(409, "no_attention", f"{self.id} is a ResNet: only a Vision Transformer has attention")
        return model

    @property
    def classifier(self) -> ViT:
        """A ViT that tells classes of whole pictures apart."""
        if not self.vit.config.num_classes:
            raise ApiError(409, "no_head", f"{self.id} does not classify, so it has no classes to explain")
        return self.vit

    @property
    def segmenter(self) -> Segmenter:
        if not isinstance(self.model, Segmenter):
            raise ApiError(409, "no_masks", f"{self.id} does not segment")
        return self.model

    @property
    def grid(self) -> Size:
        """Of a ResNet, which has no patches, none."""
        return (0, 0) if isinstance(self.model, ResNet) else self.vit.config.grid


def looked(served: Served) -> Looked:
    """Shared with what is served, where that is in float32 already."""
    model = served.model
    device = next(model.parameters()).device
    return Looked(served.id, placed(model, device, torch.float32).eval(), served.labels)


@dataclass(frozen=True)
class Held:
    """A picture, decoded: its own size, and its pixels as each model is shown them."""

    size: Size
    pixels: dict[str, UInt8[Tensor, "c h w"]]  # by the model's name

    @property
    def bytes(self) -> int:
        return sum(pixels.nbytes for pixels in self.pixels.values())


def held(data: bytes, models: list[Looked]) -> Held:
    configs = [(one.id, one.model.config) for one in models]
    pixels = {id: fit(data, how.image_size, how.preprocessing, how.channels) for id, how in configs}
    return Held(size_of(data), pixels)


def seen(looked: Looked, picture: Size) -> Box:
    """What the grid covers, in the picture's pixels; beyond what was cut out of it where that is padded."""
    config = looked.model.config
    box = seen_part(picture, config.image_size, config.preprocessing)
    if isinstance(looked.model, ResNet):
        return box
    (gh, gw), (uh, uw), (h, w) = looked.grid, looked.vit.config.patch_stride, config.image_size
    return Box(box.top, box.left, box.height * gh * uh / h, box.width * gw * uw / w)


@dataclass(frozen=True)
class Subject:
    """A picture in front of a model. What is made of it may be kept, under `key` and a name."""

    looked: Looked
    image: Float[Tensor, "1 c h w"]
    key: Hashable
    kept: Shelf[Any]
    step: Step  # to be called between two steps of long work

    def once(self, name: Hashable, make: Callable[[], T], size: Callable[[T], int]) -> T:
        place = ("made", self.key, name)  # apart from answers, which may be called the same
        found = self.kept.get(place)
        if found is None:
            found = make()
            self.kept.put(place, found, size(found))
        return found

    @cached_property  # for this question at least, where the tokens are too many to be kept
    def walk(self) -> Walk:
        """One pass through the model, from which all else is made."""
        return self.once(
            "walk",
            lambda: walked(self.looked.vit, self.image),
            lambda walk: sum(state.nbytes for state in walk.states),
        )

    @property
    def slow(self) -> bool:
        """A pass takes a good part of a second, as a ViT-B's does on a few cores: what needs many makes do with fewer.

        A ViT-S/16 with 224 pixels is below the bound, a ViT-B/16 above.
        """
        config = self.looked.vit.config
        return self.image.device.type == "cpu" and config.num_tokens * config.width**2 * config.depth > 10**9

    @property
    def batch_size(self) -> int:
        """Pictures at once, few enough for a step to be short: about 4 of a ViT-B/16 on a CPU."""
        config = self.looked.vit.config
        numbers = 2**23 if self.image.device.type == "cpu" else 2**27
        return min(max(numbers // (config.num_tokens * config.width * config.depth), 1), 64)


def subject(looked: Looked, picture: Held, key: Hashable, kept: Shelf[Any], step: Step) -> Subject:
    device = next(looked.model.parameters()).device
    pixels = picture.pixels[looked.id][None].to(device).float() / 255
    return Subject(looked, normalise(pixels, looked.model.config.preprocessing), key, kept, step)
