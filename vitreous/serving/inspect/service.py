"""Answers requests about uploaded images: keeps decoded images and answers in memory, and computes missing ones."""

import asyncio
import hashlib
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from fastapi import Request, Response

from vitreous.common.checks import BadValue, Size
from vitreous.data.image import UnreadableImage
from vitreous.serving.errors import ApiError
from vitreous.serving.inspect.lru_cache import LruCache
from vitreous.serving.inspect.responses import Answer, NotANumber, as_json
from vitreous.serving.inspect.session import (
    DecodedImage,
    InspectedModel,
    Session,
    decode_image,
    inspected_model,
    open_session,
)
from vitreous.serving.models import ServedModel, find_model
from vitreous.serving.scheduler import Priority, Scheduler, Step, Work, result_for
from vitreous.serving.uploads import Upload

MEGABYTE = 2**20


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
        self.models = {one.id: inspected_model(one) for one in served}
        self.images = LruCache[DecodedImage](images, image_bytes)
        self.cache = LruCache[Any](2**14, cache_bytes)

    def model(self, id: str | None) -> InspectedModel:
        return self.models[find_model(self.served, id).id]

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
                image = decode_image(upload.data, list(self.models.values()))
                self.images.put(id, image, image.bytes)
            return as_json(make(open_session(model, image, (model.id, id), self.cache, step), id, image.size))

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
        key = (inspected.id, id)

        def work(step: Step) -> Answer:
            result = make(open_session(inspected, image, key, self.cache, step))
            return result if isinstance(result, Answer) else as_json(result)

        return as_response(await self._answer(request, ("answer", key, name), work, priority))

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
        except NotANumber as error:
            raise ApiError(422, "not_a_number", str(error)) from None
        except (MemoryError, torch.OutOfMemoryError):
            raise ApiError(413, "too_large", "there is not enough memory for this") from None


def as_response(answer: Answer) -> Response:
    headers = {"Cache-Control": "no-store"}  # answers about an image stay in memory, here and in the browser
    if answer.shape:
        headers["X-Shape"] = ",".join(map(str, answer.shape))
    return Response(answer.body, media_type=answer.kind, headers=headers)
