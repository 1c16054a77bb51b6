"""Where questions about pictures arrive: pictures that were sent are held, answers are kept, and work is handed on."""

import asyncio
import hashlib
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from fastapi import Request, Response

from vitreous.common.checks import BadValue
from vitreous.data.image import UnreadableImage
from vitreous.serving.disconnect import gone
from vitreous.serving.errors import CLIENT_LEFT, ApiError, busy
from vitreous.serving.image_limits import Upload
from vitreous.serving.inspect.lru_cache import Shelf
from vitreous.serving.inspect.responses import Answer, NotANumber, as_json
from vitreous.serving.inspect.session import Held, Looked, Subject, held, looked, subject
from vitreous.serving.inspect.worker import Busy, Pace, Step, Stopped, Worker
from vitreous.serving.models import Served, pick

MEGABYTE = 2**20


class Desk:
    """All of it is in memory, and of all of it there is no more than was said at the beginning.

    pictures, picture_bytes: decoded pictures.
    kept_bytes: tokens of every layer, maps and other answers about them.
    room: questions that wait.
    patience: seconds for an answer, after which it is given up.
    """

    def __init__(
        self,
        served: Sequence[Served],
        pictures: int = 32,
        picture_bytes: int = 128 * MEGABYTE,
        kept_bytes: int = 384 * MEGABYTE,
        room: int = 64,
        patience: float = 300.0,
    ):
        self.served = list(served)
        self.models = {one.id: looked(one) for one in served}
        self.pictures = Shelf[Held](pictures, picture_bytes)
        self.kept = Shelf[Any](2**14, kept_bytes)
        self.worker = Worker(room, torch.get_num_threads())
        self.patience = patience

    def model(self, id: str | None) -> Looked:
        return self.models[pick(self.served, id).id]

    async def receive(self, request: Request, model: Looked, sent: Upload, about: Callable[..., Answer]) -> Response:
        """Decode an uploaded image for every model, hold it under the hash of its bytes, and answer `about` it."""
        data = sent.data
        id = (await asyncio.to_thread(hashlib.sha256, data)).hexdigest()[:32]
        key: Hashable = (model.id, id)
        name: Hashable = ("answer", key, "picture")

        def work(step: Step) -> Answer:
            picture = self.pictures.get(id)
            if picture is None:
                picture = held(data, list(self.models.values()))
                self.pictures.put(id, picture, picture.bytes)
            return about(subject(model, picture, key, self.kept, step), id, picture.size)

        if self.pictures.get(id) is None:
            self.kept.drop(name)  # the picture itself is needed as well
        return await self._answer(request, name, work, Pace.LONG if sent.large else Pace.QUICK)

    async def ask(
        self, request: Request, model: Looked, id: str, name: Hashable, make: Callable[[Subject], Answer], pace: Pace
    ) -> Response:
        """Something about a picture that is held. `name`: of the question, with all that its answer depends on."""
        picture = self.pictures.get(id)
        if picture is None:
            raise ApiError(404, "unknown_image", f"no picture {id[:40]!r} is held here, or no longer: send it again")
        key: Hashable = (model.id, id)
        work = lambda step: make(subject(model, picture, key, self.kept, step))  # noqa: E731
        return await self._answer(request, ("answer", key, name), work, pace)

    async def tell(
        self,
        request: Request,
        model: Looked,
        id: str,
        name: Hashable,
        make: Callable[[Subject], dict[str, Any]],
        pace: Pace,
    ) -> Response:
        """The same, as JSON."""
        return await self.ask(request, model, id, name, lambda subject: as_json(make(subject)), pace)

    async def ask_model(self, request: Request, model: Looked, name: Hashable, make: Callable[[], Answer]) -> Response:
        """Something about a model alone."""
        return await self._answer(request, ("answer", model.id, name), lambda step: make(), Pace.QUICK)

    async def _answer(self, request: Request, name: Hashable, work: Callable[[Step], Answer], pace: Pace) -> Response:
        """As it was kept or, where it is not, as `work` makes it."""

        def make(step: Step) -> Answer:
            made = work(step)
            self.kept.put(name, made, len(made.body))
            return made

        return _sent(self.kept.get(name) or await self._work(request, name, make, pace))

    async def _work(self, request: Request, key: Hashable, work: Callable[[Step], Answer], pace: Pace) -> Answer:
        try:
            async with asyncio.timeout(self.patience):
                return await self.worker.run(key, work, pace, lambda: gone(request))
        except Busy:
            raise busy("too many questions about pictures are waiting") from None
        except Stopped:
            raise ApiError(CLIENT_LEFT, "client_left", "nobody waits for this answer any more") from None
        except BadValue as error:
            raise ApiError(422, "bad_parameter", str(error)) from None
        except UnreadableImage as error:
            raise ApiError(422, "unreadable_image", str(error)) from None
        except NotANumber as error:
            raise ApiError(422, "not_a_number", str(error)) from None
        except TimeoutError:
            raise ApiError(503, "timeout", f"there was no answer after {self.patience:g} s") from None
        except (MemoryError, torch.OutOfMemoryError):
            raise ApiError(413, "too_large", "there is not enough memory for this") from None


def _sent(answer: Answer) -> Response:
    headers = {"Cache-Control": "no-store"}  # what a picture says stays in memory here, and in the browser
    if answer.shape:
        headers["X-Shape"] = ",".join(map(str, answer.shape))
    return Response(answer.body, media_type=answer.kind, headers=headers)
