"""Answers requests about uploaded images: keeps decoded images and results in memory, and computes missing ones.

c: channels; h, w: image height and width.
"""

import asyncio
import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

import torch
from fastapi import Request, Response
from jaxtyping import Float, UInt8
from torch import Tensor

from vitreous.common.checks import BadValue, Size
from vitreous.data.image import UnreadableImage, fit, size_of
from vitreous.explanation.captured import CapturedForward, capture
from vitreous.explanation.draw import Box, model_region
from vitreous.explanation.result import class_index
from vitreous.inference.device import placed
from vitreous.inference.engine import model_input
from vitreous.model.protocol import Model, UnsupportedModel
from vitreous.model.vit import ViT, require_vit
from vitreous.serving.batch_queue import Priority, Scheduler, Step, Work, result_for
from vitreous.serving.errors import ApiError
from vitreous.serving.models import ServedModel
from vitreous.serving.requests import Upload, find_model

JSON, BYTES = "application/json", "application/octet-stream"
MEGABYTE = 2**20
MAX_ANSWER_BYTES = 64 * MEGABYTE

T = TypeVar("T")


class LruCache(Generic[T]):
    """Drops the least recently used values when there are too many values or bytes."""

    def __init__(self, count: int, size: int):
        self.count, self.size = count, size
        self.used = 0  # bytes
        self._values: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        self._lock = threading.Lock()  # read in the event loop, filled in a worker thread

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Hashable) -> T | None:
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key][0]

    def put(self, key: Hashable, value: T, size: int) -> None:
        """Add a value, unless it is larger than the whole cache."""
        with self._lock:
            self._remove(key)
            if size > self.size:
                return
            self._values[key] = (value, size)
            self.used += size
            while len(self._values) > self.count or self.used > self.size:
                self.used -= self._values.popitem(last=False)[1][1]

    def drop(self, key: Hashable) -> None:
        with self._lock:
            self._remove(key)

    def _remove(self, key: Hashable) -> None:
        _, size = self._values.pop(key, (None, 0))
        self.used -= size


# ---- Models and images -----------------------------------------------------------------------------------------------


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

    def layer(self, layer: int | None) -> int:
        """Check the index of a layer; None for the last."""
        depth = self.vit.config.depth
        if layer is not None and layer >= depth:
            raise ApiError(422, "bad_parameter", f"layer is {layer}, but must be an integer from 0 to {depth - 1}")
        return depth - 1 if layer is None else layer

    def target(self, name: str | None) -> int | None:
        """Index of the class; None for the most probable, also if the parameter is empty."""
        try:
            return class_index(self.classifier.config, name or None, "target")
        except BadValue as error:
            raise ApiError(422, "bad_parameter", str(error)) from None

    def check_attention(self) -> None:
        """Reject a model whose attention weights of one layer are too large to send or to keep for gradients."""
        config = self.vit.config
        check_size(config.num_heads * config.num_tokens**2, "the attention of a layer", config.num_tokens)


def check_size(size: int, what: str, tokens: int) -> None:
    if size > MAX_ANSWER_BYTES:
        message = f"{what} has {size:,} bytes for {tokens:,} tokens, but at most {MAX_ANSWER_BYTES:,} are sent"
        raise ApiError(413, "too_many_tokens", f"{message}: serve the model with a smaller --image-size")


@dataclass(frozen=True)
class DecodedImage:
    """Size of an image, and its pixels as the input of each model."""

    size: Size
    pixels: dict[str, UInt8[Tensor, "c h w"]]  # by the model's id


def covered_box(inspected: InspectedModel, image: Size) -> Box:
    """Region that the grid covers, in the image's pixels; it extends beyond a padded image."""
    config = inspected.model.config
    box = model_region(image, config.image_size, config.preprocessing)
    if not config.backbone.has_attention:
        return box
    (gh, gw), (ph, pw), (h, w) = inspected.grid, config.patch_stride, config.image_size
    return Box(box.top, box.left, box.height * gh * ph / h, box.width * gw * pw / w)


# ---- Sessions --------------------------------------------------------------------------------------------------------


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


# ---- Answers ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """Body and media type; `shape` is that of the array at the end of the body."""

    body: bytes
    kind: str = JSON
    shape: tuple[int, ...] = ()


def as_json(value: dict[str, Any]) -> Answer:
    return Answer(json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode())


def as_response(answer: Answer) -> Response:
    headers = {"Cache-Control": "no-store"}  # answers about an image stay in memory, here and in the browser
    if answer.shape:
        headers["X-Shape"] = ",".join(map(str, answer.shape))
    return Response(answer.body, media_type=answer.kind, headers=headers)


class InspectService:
    """Shared by the page and /v1/explain. Memory is bounded.

    images, image_bytes: of decoded images.
    cache_bytes: of tokens of every layer, maps and answers.
    timeout: seconds for an answer.
    """

    def __init__(
        self,
        served: Sequence[ServedModel],
        scheduler: Scheduler,
        images: int = 32,
        image_bytes: int = 128 * MEGABYTE,
        cache_bytes: int = 384 * MEGABYTE,
        timeout: float = 300.0,
    ):
        self.served, self.scheduler, self.timeout = list(served), scheduler, timeout
        self.models: dict[str, InspectedModel] = {}
        for one in served:  # models in float32 are shared, others copied
            model = placed(one.model, next(one.model.parameters()).device, torch.float32).eval()
            self.models[one.id] = InspectedModel(one.id, model, one.labels)
        self.images = LruCache[DecodedImage](images, image_bytes)
        self.cache = LruCache[Any](2**14, cache_bytes)

    def model(self, id: str | None) -> InspectedModel:
        return self.models[find_model(self.served, id).id]

    def _session(self, inspected: InspectedModel, image: DecodedImage, id: str, step: Step) -> Session:
        device = next(inspected.model.parameters()).device
        pixels = model_input(image.pixels[inspected.id][None], device, inspected.model.config.preprocessing)
        return Session(inspected, pixels, (inspected.id, id), self.cache, step)

    async def answer_upload(
        self,
        request: Request,
        model: InspectedModel,
        upload: Upload,
        name: Hashable,
        make: Callable[[Session, str, Size], dict[str, Any]],
        priority: Priority = Priority.QUICK,
    ) -> Answer:
        """Decode an image for every model, keep it under the hash of its bytes, and answer with `make`."""
        id = (await asyncio.to_thread(hashlib.sha256, upload.data)).hexdigest()[:32]

        def work(step: Step) -> Answer:
            image = self.images.get(id)
            if image is None:
                configs = [(one.id, one.model.config) for one in self.models.values()]
                pixels = {key: fit(upload.data, c.image_size, c.preprocessing, c.channels) for key, c in configs}
                image = DecodedImage(size_of(upload.data), pixels)
                self.images.put(id, image, sum(one.nbytes for one in pixels.values()))
            return as_json(make(self._session(model, image, id, step), id, image.size))

        key = ("answer", (model.id, id), name)
        if self.images.get(id) is None:
            self.cache.drop(key)  # so that the image is decoded and kept
        return await self._answer(request, key, work, Priority.LONG if upload.large else priority)

    async def respond(
        self,
        request: Request,
        model: str | None,
        id: str,
        name: Hashable,
        make: Callable[[Session], Answer | dict[str, Any]],
        priority: Priority = Priority.QUICK,
    ) -> Response:
        """Answer with `make` about an uploaded image. `name` holds everything that the answer depends on."""
        inspected, image = self.model(model), self.images.get(id)
        if image is None:
            raise ApiError(404, "unknown_image", f"unknown or expired image {id[:40]!r}: send it again")

        def work(step: Step) -> Answer:
            result = make(self._session(inspected, image, id, step))
            return result if isinstance(result, Answer) else as_json(result)

        key = ("answer", (inspected.id, id), name)
        return as_response(await self._answer(request, key, work, priority))

    async def respond_without_image(
        self, request: Request, model: InspectedModel, name: Hashable, make: Callable[[], Answer]
    ) -> Response:
        key = ("answer", model.id, name)
        return as_response(await self._answer(request, key, lambda step: make(), Priority.QUICK))

    async def _answer(self, request: Request, key: Hashable, work: Work, priority: Priority) -> Answer:
        """Return the cached answer, or compute it."""

        def compute(step: Step) -> Answer:
            answer: Answer = work(step)
            self.cache.put(key, answer, len(answer.body))
            return answer

        cached: Answer | None = self.cache.get(key)
        if cached is not None:
            return cached
        try:
            result = self.scheduler.run(key, compute, priority)
            answer: Answer = await result_for(request, result, self.timeout, self.timeout)
            return answer
        except BadValue as error:
            raise ApiError(422, "bad_parameter", str(error)) from None
        except UnreadableImage as error:
            raise ApiError(422, "unreadable_image", str(error)) from None
        except (MemoryError, torch.OutOfMemoryError):
            raise ApiError(413, "too_large", "there is not enough memory for this") from None
