"""Pictures in, labels and probabilities out: decoded by threads ahead of the model, batched, normalised on its device.

What a picture goes through is what the checkpoint says (`config.preprocessing`), nothing else; so an answer does not
depend on the other pictures of a batch, nor on their order. A picture that cannot be read has an error for an answer,
and harms no other.

b: batch; c: channels; h, w: height and width; d: width of the features.
"""

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor

from vitreous.common.checks import check_choice, check_whole
from vitreous.common.regular_files import read_regular
from vitreous.common.threads import cores
from vitreous.data.image import UnreadableImage, fit
from vitreous.data.image.colour_modes import pixels_of
from vitreous.data.image.decoding import upright
from vitreous.data.sources.base import StoredImage
from vitreous.inference.answers import Embedding, Label, Prediction, Throughput
from vitreous.inference.decoders import decoders
from vitreous.inference.device import choose_device, choose_dtype, placed
from vitreous.inference.memory_check import check_memory
from vitreous.inference.model_kind import check_suits
from vitreous.model.inputs import normalise
from vitreous.model.resnet import ResNet
from vitreous.model.vit import ViT

# A path, an encoded file, pixels [h, w] or [h, w, c] of uint8, or an image of Pillow's.
Input = str | os.PathLike[str] | bytes | np.ndarray | Image.Image
T = TypeVar("T")
_PILLOW = threading.Lock()


class Predictor:
    """A model with all that surrounds it.

    device: "auto" is CUDA, else Apple's MPS, else the CPU; or a name of torch's. None leaves a model that is on an
        accelerator where it is, and is "auto" for one that is on the CPU.
    precision: "fp32"; "bf16"; "auto" is bf16 on a GPU that computes in it, else fp32.
    flip: average the probabilities of the picture and its mirror image.
    compile: torch.compile the model; batches are then padded to one size, so that it is compiled once.
    workers: threads that decode; 0 is whoever asks, None is one for each processor, at most 16.
    decode: "exact"; "fast" reads JPEGs much larger than needed at a reduced scale, which changes some answers.

    The caller's model is never moved or converted: where its device or type differs, the predictor has a copy of its
    own. Otherwise the two share everything, and every run puts the model into evaluation mode.

    >>> from vitreous.model.presets import create
    >>> predictor = Predictor(create("ViT-Lite-6/4", num_classes=3), device="cpu", top=1)
    >>> [answer] = predictor(np.zeros((48, 64, 3), dtype=np.uint8))
    >>> answer.name, len(answer.predictions)
    ('picture 0', 1)
    """

    def __init__(
        self,
        model: ViT | ResNet,
        device: str | torch.device | None = None,
        batch_size: int = 32,
        precision: Literal["fp32", "bf16", "auto"] = "fp32",
        top: int = 5,
        flip: bool = False,
        compile: bool = False,
        workers: int | None = None,
        decode: Literal["exact", "fast"] = "exact",
    ):
        check_suits(model, "Predictor")
        config = model.config
        check_whole("batch_size", batch_size, 1, 2**20)
        check_whole("top", top, 1, 2**31)
        check_whole("workers", 0 if workers is None else workers, 0, 2**10)
        check_choice("precision", precision, ("fp32", "bf16", "auto"))
        check_choice("decode", decode, ("exact", "fast"))
        if config.channels not in (1, 3):
            raise ValueError(f"the model takes {config.channels} channels, but pictures have 1 (grey) or 3 (RGB)")
        self.device = choose_device(device, next(model.parameters()).device)
        check_memory(config, self.device)
        self.dtype = choose_dtype(precision, self.device)
        self.model, self.config = placed(model, self.device, self.dtype), config
        self.batch_size, self.flip, self.compiled = batch_size, flip, compile
        self.top = min(top, config.num_classes)
        self.labels = config.labels or tuple(f"class {i}" for i in range(config.num_classes))
        self.workers = min(cores(), 16) if workers is None else workers
        self.fast_decode = decode == "fast"
        self.throughput = Throughput(0, 0.0)
        self._score: Callable[[Tensor], Tensor] = torch.compile(self._forward) if compile else self._forward
        self._pool: Callable[[Tensor], Tensor] = torch.compile(self._pooled) if compile else self._pooled

    @property
    def width(self) -> int:
        """The length of an embedding."""
        return self.model.stages.channels if isinstance(self.model, ResNet) else self.model.config.width

    # ---- What it answers ----

    def __call__(self, pictures: Input | Iterable[Input]) -> list[Prediction]:
        """One picture or many (an array of four dimensions is many); always a list, in the same order."""
        return list(self.stream(pictures))

    def stream(self, pictures: Input | Iterable[Input]) -> Iterator[Prediction]:
        """Predictions as they come, for any number of pictures: no more than three batches are in memory."""
        self._check_head()
        return self._run(pictures, self._predictions, Prediction)

    def stream_embeddings(self, pictures: Input | Iterable[Input]) -> Iterator[Embedding]:
        """Likewise, the features of each picture."""
        return self._run(pictures, self._embeddings, Embedding)

    def stream_logits(self, pictures: Input | Iterable[Input]) -> Iterator[Embedding]:
        """Likewise, the scores of every class of each picture."""
        self._check_head()
        return self._run(pictures, self._logits, Embedding)

    def logits(self, pictures: Input | Iterable[Input]) -> Float[Tensor, "n classes"]:
        """The scores of every class, float32, on the CPU. All pictures must be readable.

        With `flip`, they are the logarithms of the averaged probabilities.
        """
        return _stacked(self.stream_logits(pictures), self.config.num_classes)

    def embed(self, pictures: Input | Iterable[Input]) -> Float[Tensor, "n d"]:
        """The pooled features before the head, float32, on the CPU. All pictures must be readable.

        With `flip`, they are averaged with the mirror image's.
        """
        return _stacked(self.stream_embeddings(pictures), self.width)

    # ---- From pixels to answers, a batch at a time; None where the model's numbers are none ----

    def _predictions(self, images: Tensor) -> list[tuple[Label, ...] | None]:
        best = self._log_probabilities(images).topk(self.top)
        rows = zip(best.indices.tolist(), best.values.exp().tolist(), strict=True)
        return [
            tuple(Label(self.labels[i], i, p) for i, p in zip(indices, probabilities, strict=True))
            if math.isfinite(probabilities[0])  # NaN comes first
            else None
            for indices, probabilities in rows
        ]

    def _logits(self, images: Tensor) -> list[Tensor | None]:
        return _finite(self._log_probabilities(images) if self.flip else self._score(images).float())

    def _log_probabilities(self, images: Tensor) -> Tensor:
        scores = self._score(images).float().log_softmax(dim=-1)
        if not self.flip:
            return scores
        return torch.logaddexp(scores, self._score(images.flip(-1)).float().log_softmax(dim=-1)) - math.log(2)

    def _embeddings(self, images: Tensor) -> list[Tensor | None]:
        features = self._pool(images).float()
        return _finite((features + self._pool(images.flip(-1)).float()) / 2 if self.flip else features)

    def _forward(self, images: Tensor) -> Tensor:
        return self.model(images)

    def _pooled(self, images: Tensor) -> Tensor:
        if isinstance(self.model, ResNet):
            return self.model.feature_map(images).mean(dim=(2, 3))
        return self.model.pool(self.model.features(images))

    # ---- The run ----

    def _run(
        self, pictures: Input | Iterable[Input], step: Callable[[Tensor], list[Any]], answer: Callable[..., T]
    ) -> Iterator[T]:
        began, count = time.perf_counter(), 0
        self.model.eval()
        try:
            for batch in self._batches(many(pictures)):
                answers = iter(self._step([image for _, image in batch if isinstance(image, Tensor)], step))
                for name, image in batch:
                    count += 1
                    if isinstance(image, str):
                        yield answer(name, error=image)
                    elif (found := next(answers)) is None:
                        yield answer(name, error="the model's answer is not a number")
                    else:
                        yield answer(name, found)
        finally:
            self.throughput = Throughput(count, time.perf_counter() - began)

    @torch.inference_mode()
    def _step(self, images: list[Tensor], step: Callable[[Tensor], list[Any]]) -> list[Any]:
        count = len(images)
        if not count:
            return []
        if self.compiled:
            images = images + [torch.zeros_like(images[0])] * (self.batch_size - count)
        scaled = torch.stack(images).to(self.device).float() / 255
        return step(normalise(scaled, self.config.preprocessing).to(self.dtype))[:count]

    def _batches(self, pictures: Iterator[Input]) -> Iterator[list[tuple[str, Tensor | str]]]:
        """Names with their pixels, or with what is wrong. The threads are at most two batches ahead."""
        pending: deque[tuple[str, Future[Tensor | str]]] = deque()

        def take() -> list[tuple[str, Tensor | str]]:
            batch = [pending.popleft() for _ in range(min(self.batch_size, len(pending)))]
            return [(name, future.result()) for name, future in batch]

        pool = decoders(self.workers)
        try:
            for index, picture in enumerate(pictures):
                if isinstance(picture, np.ndarray):
                    picture = picture.copy()  # the caller may put the next picture into it meanwhile
                pending.append((name_of(picture, index), pool.submit(self._prepare, picture)))
                if len(pending) == 3 * self.batch_size:
                    yield take()
            while pending:
                yield take()
        finally:
            pool.shutdown(cancel_futures=True)

    def _prepare(self, picture: Input) -> UInt8[Tensor, "c h w"] | str:
        """The picture's pixels as the model is to see them, or what is wrong with it. Runs in a thread."""
        try:
            config = self.config
            return fit(encoded(picture), config.image_size, config.preprocessing, config.channels, self.fast_decode)
        except OSError as error:
            return error.strerror or str(error)
        except (ValueError, MemoryError) as error:
            return str(error) or "there is not enough memory to decode it"

    def _check_head(self) -> None:
        if not self.config.num_classes:
            raise ValueError("the model has no head to classify with (num_classes is 0): use embed")


def name_of(picture: Input, index: int) -> str:
    """What an answer calls a picture: its path where it has one."""
    if isinstance(picture, str | os.PathLike):
        return os.fspath(picture)
    if not isinstance(picture, bytes | np.ndarray | Image.Image):
        raise TypeError(f"a picture is {type(picture).__name__}, but must be a path, bytes, a uint8 array or an image")
    return str(getattr(picture, "filename", "")) or f"picture {index}"


def many(pictures: Input | Iterable[Input]) -> Iterator[Input]:
    if isinstance(pictures, np.ndarray):
        return iter(pictures if pictures.ndim == 4 else [pictures])
    return iter([pictures] if isinstance(pictures, str | os.PathLike | bytes | Image.Image) else pictures)


def encoded(picture: Input) -> StoredImage:
    """What decoders take: the bytes of a file, or pixels."""
    if isinstance(picture, str | os.PathLike):
        return read_regular(picture)
    if isinstance(picture, Image.Image):
        with _PILLOW:  # the same image may have been given twice, and Pillow decodes late
            return _pixels(picture)
    return picture


def _pixels(image: Image.Image) -> np.ndarray:
    """Upright pixels of an image of Pillow's, which may still have to decode its file."""
    try:
        pixels = pixels_of(image)
        orientation = 1 if image.format == "TIFF" else image.getexif().get(0x0112, 1)  # Pillow turns those itself
    except Exception as error:  # Pillow raises exceptions of all kinds
        raise UnreadableImage(f"cannot be decoded: {' '.join(str(error).split()) or type(error).__name__}") from error
    return upright(pixels, orientation if orientation in range(1, 9) else 1)


def _finite(rows: Float[Tensor, "b n"]) -> list[Tensor | None]:
    with torch.inference_mode(False):
        rows = rows.cpu().clone()  # tensors that others may compute gradients with
    return [row if whole else None for row, whole in zip(rows, rows.isfinite().all(dim=1).tolist(), strict=True)]


def _stacked(answers: Iterator[Embedding], width: int) -> Float[Tensor, "n d"]:
    rows = []
    for answer in answers:
        if answer.vector is None:
            raise ValueError(f"{answer.name}: {answer.error}")
        rows.append(answer.vector)
    return torch.stack(rows) if rows else torch.zeros(0, width)
