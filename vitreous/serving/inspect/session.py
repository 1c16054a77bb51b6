"""Models that the page inspects, and sessions: one decoded image for one of these models.

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
from vitreous.explanation.captured import CapturedForward, capture
from vitreous.explanation.draw import Box, model_region
from vitreous.inference.device import placed
from vitreous.inference.engine import model_input
from vitreous.model.protocol import Model, UnsupportedModel
from vitreous.model.vit import ViT, require_vit
from vitreous.serving.errors import ApiError
from vitreous.serving.inspect.lru_cache import LruCache
from vitreous.serving.models import ServedModel
from vitreous.serving.scheduler import Step

T = TypeVar("T")


@dataclass(frozen=True)
class InspectedModel:
    """A served model in float32 at any serving precision: maps multiply small numbers through all layers."""

    id: str
    model: Model
    labels: tuple[str, ...]

    @property
    def vit(self) -> ViT:
        """The model, or a segmenter's encoder; an error if it is not a Vision Transformer."""
        try:
            return require_vit(self.model, "attention")
        except UnsupportedModel as error:
            raise ApiError(409, "no_attention", str(error)) from None

    @property
    def classifier(self) -> ViT:
        """The Vision Transformer; an error if it has no head."""
        if not self.vit.config.num_classes:
            raise ApiError(409, "no_head", f"{self.id} does not classify, so it has no classes to explain")
        return self.vit

    @property
    def grid(self) -> Size:
        """Grid of patches; (0, 0) for a model without attention."""
        config = self.model.config.backbone
        return config.grid if config.has_attention else (0, 0)


def inspected_model(served: ServedModel) -> InspectedModel:
    """Share the served model if it is in float32; otherwise copy it."""
    model = served.model
    device = next(model.parameters()).device
    return InspectedModel(served.id, placed(model, device, torch.float32).eval(), served.labels)


@dataclass(frozen=True)
class DecodedImage:
    """Size of an image, and its pixels as the input of each model."""

    size: Size
    pixels: dict[str, UInt8[Tensor, "c h w"]]  # by the model's id

    @property
    def bytes(self) -> int:
        return sum(pixels.nbytes for pixels in self.pixels.values())


def decode_image(data: bytes, models: list[InspectedModel]) -> DecodedImage:
    configs = [(one.id, one.model.config) for one in models]
    pixels = {id: fit(data, how.image_size, how.preprocessing, how.channels) for id, how in configs}
    return DecodedImage(size_of(data), pixels)


def covered_box(inspected: InspectedModel, image: Size) -> Box:
    """Region that the grid covers, in the image's pixels; it extends beyond a padded image."""
    config = inspected.model.config
    box = model_region(image, config.image_size, config.preprocessing)
    if not config.backbone.has_attention:
        return box
    (gh, gw), (ph, pw), (h, w) = inspected.grid, config.patch_stride, config.image_size
    return Box(box.top, box.left, box.height * gh * ph / h, box.width * gw * pw / w)


@dataclass(frozen=True)
class Session:
    """One image as the input of one model; results are cached under `key` and a name."""

    inspected: InspectedModel
    image: Float[Tensor, "1 c h w"]
    key: Hashable
    kept: LruCache[Any]
    step: Step  # called between two steps of long work

    def once(self, name: Hashable, make: Callable[[], T], size: Callable[[T], int]) -> T:
        """Return the cached result, or make and cache it."""
        place = ("made", self.key, name)  # apart from answers, which may have the same name
        found = self.kept.get(place)
        if found is None:
            found = make()
            self.kept.put(place, found, size(found))
        return found

    @cached_property  # for this request at least, if the tokens are too large for the cache
    def captured(self) -> CapturedForward:
        """The forward pass from which everything else is computed."""
        return self.once(
            "captured",
            lambda: capture(self.inspected.vit, self.image),
            lambda captured: sum(state.nbytes for state in captured.states),
        )

    @property
    def classifier_pass(self) -> CapturedForward:
        """The forward pass; an error if the model does not classify."""
        _ = self.inspected.classifier
        return self.captured

    @property
    def slow(self) -> bool:
        """True if a forward pass takes much of a second: on a CPU a ViT-B/16 does, a ViT-S/16 does not."""
        config = self.inspected.vit.config
        return self.image.device.type == "cpu" and config.num_tokens * config.width**2 * config.depth > 10**9

    @property
    def batch_size(self) -> int:
        """Images at once, few enough for a short step: about 4 with a ViT-B/16 on a CPU."""
        config = self.inspected.vit.config
        numbers = 2**23 if self.image.device.type == "cpu" else 2**27
        return min(max(numbers // (config.num_tokens * config.width * config.depth), 1), 64)


def open_session(
    inspected: InspectedModel, image: DecodedImage, key: Hashable, kept: LruCache[Any], step: Step
) -> Session:
    device = next(inspected.model.parameters()).device
    pixels = model_input(image.pixels[inspected.id][None], device, inspected.model.config.preprocessing)
    return Session(inspected, pixels, key, kept, step)
