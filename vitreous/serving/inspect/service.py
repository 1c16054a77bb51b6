"""Caches uploaded images and results. Results that are not in the cache are computed.

c: channels; h, w: image height and width.
"""

import asyncio
import hashlib
import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, TypeVar, cast

import torch
from fastapi import Request, Response
from jaxtyping import Float, UInt8
from torch import Tensor

from vitreous.common.checks import BadValue, Size
from vitreous.common.device import placed
from vitreous.data.image import UnreadableImage, decode, fit, resize, size_of
from vitreous.explanation.attention_and_logit_lens import CapturedForward, capture
from vitreous.explanation.result import class_index
from vitreous.explanation.switch_off import SwitchedOff, switch_off
from vitreous.inference.forward_pass import model_input
from vitreous.inference.segment_predictor import LONGEST
from vitreous.model.centre_crop import covering
from vitreous.model.config import ViTConfig
from vitreous.model.protocol import Model, UnsupportedModel, require_attention
from vitreous.model.vit import ViT
from vitreous.page.gallery import Gallery
from vitreous.page.results import NotFinite
from vitreous.page.walk import global_attention
from vitreous.serving.batch_queue import Priority, Scheduler, Step, Work, result_for
from vitreous.serving.errors import ApiError
from vitreous.serving.models import ServedModel
from vitreous.serving.requests import Upload, find_model

JSON, BYTES = "application/json", "application/octet-stream"
MEGABYTE = 2**20
MAX_RESPONSE_BYTES = 64 * MEGABYTE
NOTHING_OFF = SwitchedOff()

T = TypeVar("T")


class LruCache(Generic[T]):
    """Cache with a maximum number of values and bytes. The least recently used values are dropped."""

    def __init__(self, count: int, size: int):
        self.count, self.size = count, size
        self.used = 0  # bytes
        self._values: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        self._lock = threading.Lock()  # read by the event loop, written by a worker thread

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Hashable) -> T | None:
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key][0]

    def put(self, key: Hashable, value: T, size: int) -> None:
        """Add a value unless it is larger than the whole cache."""
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
    """A served model in float32, because importance maps multiply small numbers over many layers."""

    id: str
    model: Model
    labels: tuple[str, ...]
    gallery: Gallery | None = None
    off: SwitchedOff = NOTHING_OFF

    @property
    def key(self) -> Hashable:
        """Distinguishes results of models without some parts."""
        return (self.id, self.off)

    @property
    def backbone(self) -> Model:
        """The model, or the encoder of a segmenter. Raises ApiError if it has no attention."""
        try:
            return require_attention(self.model, "this request")
        except UnsupportedModel as error:
            raise ApiError(409, "no_attention", str(error)) from None

    @property
    def global_attention(self) -> ViT:
        """The backbone. Raises ApiError if its tokens do not all attend to each other."""
        try:
            return global_attention(self.backbone, "this request")
        except UnsupportedModel as error:
            raise ApiError(409, "no_attention", str(error)) from None

    @property
    def classifier(self) -> Model:
        """The model. Raises ApiError if it does not predict classes."""
        if not self.backbone.config.output_kind.classes:
            raise ApiError(409, "no_head", f"{self.id} does not predict classes, so there is no class to explain")
        return self.backbone

    @property
    def grid(self) -> Size:
        """Grid of the maps, or (0, 0) for a model without attention."""
        config = self.model.config.backbone
        return config.map_grid if config.has_attention else (0, 0)

    def layer(self, layer: int | None) -> int:
        """Check a layer index. None selects the last layer."""
        depth = len(self.backbone.config.attention_shapes)
        if layer is not None and layer >= depth:
            raise ApiError(422, "bad_parameter", f"layer must be an integer from 0 to {depth - 1}, got {layer}")
        return depth - 1 if layer is None else layer

    def target(self, name: str | None) -> int | None:
        """Return the class index, or None (the most probable class) if the parameter is missing or empty."""
        try:
            return class_index(self.classifier.config, name or None, "target")
        except BadValue as error:
            raise ApiError(422, "bad_parameter", str(error)) from None

    def check_attention(self) -> None:
        """Raise ApiError if the attention weights of one layer are too large to send or to keep for gradients."""
        for shape in self.backbone.config.attention_shapes:
            check_size(shape.heads * shape.tokens * shape.keys, "the attention of one layer", shape.tokens)


def parse_off(text: str, config: ViTConfig) -> SwitchedOff:
    """Parse the query parameter `off`, such as "3.0,5,shuffled": a head of layer 3, layer 5, and the positions."""
    heads, layers, positions = set(), set(), "kept"
    for part in text.split(","):
        found = re.fullmatch(r"([0-9]{1,4})(?:[.]([0-9]{1,4}))?", part)
        layer, head = (int(number or 0) for number in found.groups()) if found else (config.depth, 0)
        if part in ("zero", "shuffled"):
            if positions not in ("kept", part):
                raise ApiError(422, "bad_parameter", "off must contain at most one of zero and shuffled, got both")
            positions = part
        elif found is None or layer >= config.depth or head >= config.num_heads:
            limits = f"layers from 0 to {config.depth - 1}, heads from 0 to {config.num_heads - 1}"
            message = f"off must list layer, layer.head, zero or shuffled ({limits}), got {part[:40]!r}"
            raise ApiError(422, "bad_parameter", message)
        elif found[2] is None:
            layers.add(layer)
        else:
            heads.add((layer, head))
    return SwitchedOff(frozenset(heads), frozenset(layers), cast(Any, positions))


def check_size(size: int, what: str, tokens: int) -> None:
    if size > MAX_RESPONSE_BYTES:
        message = f"{what} takes {size:,} bytes for {tokens:,} tokens; the maximum is {MAX_RESPONSE_BYTES:,}"
        raise ApiError(413, "too_many_tokens", f"{message}; serve the model with a smaller --image-size")


@dataclass(frozen=True)
class DecodedImage:
    """Original size of an image, and its pixels resized for each model."""

    size: Size
    pixels: dict[str, UInt8[Tensor, "_ _ _"]]  # keys: model ids
    whole: dict[str, UInt8[Tensor, "_ _ _"]]  # without cropping; keys: ids of segmenters

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in (*self.pixels.values(), *self.whole.values()))


def decode_for(models: Sequence[InspectedModel], data: bytes) -> DecodedImage:
    """Decode an image for every model."""
    size, configs = size_of(data), {inspected.id: inspected.model.config for inspected in models}
    pixels = {id: fit(data, c.image_size, c.preprocessing, c.channels) for id, c in configs.items()}
    whole = {}
    for id, config in configs.items():
        if config.output_kind.per_pixel and max(size) <= LONGEST * min(size):
            how = config.preprocessing
            image = decode(data, config.channels, value_range=how.value_range)
            whole[id] = resize(image, covering(size, config.image_size), how.interpolation)
    return DecodedImage(size, pixels, whole)


# ---- Sessions --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Session:
    """An image that is preprocessed for one model. Results are cached by `key` and the name of the result."""

    inspected: InspectedModel
    image: Float[Tensor, "1 c h w"]
    key: Hashable
    kept: LruCache[Any]
    step: Step  # called between the steps of long computations
    whole: Float[Tensor, "1 c _ _"] | None = None  # for segmenters: the image without cropping

    def once(self, name: Hashable, make: Callable[[], T], size: Callable[[T], int]) -> T:
        """Return the cached result, or compute and cache it."""
        place = ("made", self.key, name)  # separate from responses, which may have the same name
        found = self.kept.get(place)
        if found is None:
            found = make()
            self.kept.put(place, found, size(found))
        return found

    @cached_property  # kept for this request even if it is too large for the cache
    def captured(self) -> CapturedForward:
        """The forward pass from which all results are computed."""
        return self.once(
            "captured",
            lambda: capture(self.inspected.backbone, self.image),
            lambda captured: captured.nbytes,
        )

    @property
    def classifier_pass(self) -> CapturedForward:
        """The forward pass. Raises ApiError if the model is not a classifier."""
        _ = self.inspected.classifier
        return self.captured

    @property
    def slow(self) -> bool:
        """True if a forward pass takes a significant fraction of a second, as with ViT-B/16 (not ViT-S/16) on a CPU."""
        numbers = sum(tokens.shape[1] * tokens.shape[2] ** 2 for tokens in self.captured.inputs)
        return self.image.device.type == "cpu" and numbers > 10**9

    @property
    def batch_size(self) -> int:
        """Number of images per forward pass. It is small to keep steps short, e.g. 4 for ViT-B/16 on a CPU."""
        numbers = 2**23 if self.image.device.type == "cpu" else 2**27
        return min(max(numbers // sum(tokens[0].numel() for tokens in self.captured.inputs), 1), 64)


# ---- Results ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Payload:
    """Body and media type of a response. `shape` is the shape of the array at the end of the body."""

    body: bytes
    kind: str = JSON
    shape: tuple[int, ...] = ()


def as_json(value: dict[str, Any]) -> Payload:
    return Payload(json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode())


def as_response(payload: Payload) -> Response:
    headers = {"Cache-Control": "no-store"}  # keep results about private images off the disk
    if payload.shape:
        headers["X-Shape"] = ",".join(map(str, payload.shape))
    return Response(payload.body, media_type=payload.kind, headers=headers)


class InspectService:
    """Computes and caches results about uploaded images, for the page and /v1/explain.

    images: maximum number of decoded images to cache.
    image_bytes: maximum size of these images in bytes.
    cache_bytes: maximum size of cached tokens, maps and responses in bytes.
    timeout: time limit per request in seconds.
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
        for entry in served:  # float32 models are shared; other models are converted to a copy
            model = placed(entry.model, next(entry.model.parameters()).device, torch.float32).eval()
            self.models[entry.id] = InspectedModel(entry.id, model, entry.labels, entry.gallery)
        self.images = LruCache[DecodedImage](images, image_bytes)
        self.cache = LruCache[Any](2**14, cache_bytes)
        self.variants = LruCache[InspectedModel](16, 16)  # models without some parts, which share their weights

    def model(self, id: str | None) -> InspectedModel:
        return self.models[find_model(self.served, id).id]

    def off(self, request: Request, inspected: InspectedModel) -> SwitchedOff:
        """Return the parts of a model that the query parameter `off` names."""
        text = request.query_params.get("off")
        return parse_off(text, inspected.global_attention.config) if text else NOTHING_OFF

    def variant(self, inspected: InspectedModel, off: SwitchedOff) -> InspectedModel:
        """Return the model without some parts. Copying its modules is slow, so only worker threads call this."""
        if off == inspected.off:
            return inspected
        found = self.variants.get((inspected.id, off))
        if found is None:
            found = replace(inspected, model=switch_off(inspected.model, off), off=off)
            self.variants.put(found.key, found, 1)
        return found

    def _session(self, inspected: InspectedModel, image: DecodedImage, id: str, step: Step) -> Session:
        device = next(inspected.model.parameters()).device
        how, whole = inspected.model.config.preprocessing, image.whole.get(inspected.id)
        pixels = model_input(image.pixels[inspected.id][None], device, how)
        uncropped = None if whole is None else model_input(whole[None], device, how)
        return Session(inspected, pixels, (inspected.key, id), self.cache, step, uncropped)

    def beside(self, session: Session, id: str) -> Session:
        """Return the session of another uploaded image for the same model."""
        image = self.images.get(id)
        if image is None:
            raise ApiError(404, "unknown_image", f"unknown or expired image {id[:40]!r}; upload the image again")
        return self._session(session.inspected, image, id, session.step)

    async def respond_to_upload(
        self,
        request: Request,
        model: InspectedModel,
        upload: Upload,
        name: Hashable,
        make: Callable[[Session, str, Size], dict[str, Any]],
        priority: Priority = Priority.QUICK,
        off: SwitchedOff = NOTHING_OFF,
    ) -> Payload:
        """Decode an image for every model, cache it by the hash of its bytes, and return the result of `make`."""
        id = (await asyncio.to_thread(hashlib.sha256, upload.data)).hexdigest()[:32]

        def work(step: Step) -> Payload:
            image = self.images.get(id)
            if image is None:
                image = decode_for(list(self.models.values()), upload.data)
                self.images.put(id, image, image.nbytes)
            return as_json(make(self._session(self.variant(model, off), image, id, step), id, image.size))

        key = ("response", ((model.id, off), id), name)
        if self.images.get(id) is None:
            self.cache.drop(key)  # so that the image is decoded and cached again
        return await self._cached(request, key, work, Priority.LONG if upload.large else priority)

    async def respond(
        self,
        request: Request,
        model: str | None,
        id: str,
        name: Hashable,
        make: Callable[[Session], Payload | dict[str, Any]],
        priority: Priority = Priority.QUICK,
    ) -> Response:
        """Respond with the result of `make` for an uploaded image. `name` identifies the result and its parameters."""
        inspected, image = self.model(model), self.images.get(id)
        if image is None:
            raise ApiError(404, "unknown_image", f"unknown or expired image {id[:40]!r}; upload the image again")
        off = self.off(request, inspected)

        def work(step: Step) -> Payload:
            result = make(self._session(self.variant(inspected, off), image, id, step))
            return result if isinstance(result, Payload) else as_json(result)

        key = ("response", ((inspected.id, off), id), name)
        return as_response(await self._cached(request, key, work, priority))

    async def respond_without_image(
        self, request: Request, model: InspectedModel, name: Hashable, make: Callable[[], Payload]
    ) -> Response:
        key = ("response", model.id, name)
        return as_response(await self._cached(request, key, lambda step: make(), Priority.QUICK))

    async def _cached(self, request: Request, key: Hashable, work: Work, priority: Priority) -> Payload:
        """Return the cached result, or compute it."""

        def compute(step: Step) -> Payload:
            payload: Payload = work(step)
            self.cache.put(key, payload, len(payload.body))
            return payload

        cached: Payload | None = self.cache.get(key)
        if cached is not None:
            return cached
        try:
            result = self.scheduler.run(key, compute, priority)
            return await result_for(request, result, self.timeout, self.timeout)
        except NotFinite as error:
            raise ApiError(422, "not_a_number", str(error)) from None
        except BadValue as error:
            raise ApiError(422, "bad_parameter", str(error)) from None
        except UnsupportedModel as error:
            raise ApiError(409, "unsupported_model", str(error)) from None
        except UnreadableImage as error:
            raise ApiError(422, "unreadable_image", str(error)) from None
        except (MemoryError, torch.OutOfMemoryError):
            raise ApiError(413, "too_large", "not enough memory for this computation") from None
