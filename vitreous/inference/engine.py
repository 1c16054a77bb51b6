"""Inference engine, shared by prediction, embedding, evaluation, probes and serving.

Threads read and decode images ahead of the model. Decoded images are batched, normalised on the device and passed
through the model in the chosen precision. Each image yields one result, in order: an output, or an error that does not
affect other images.

b: batch; c: channels; h, w: height and width.
"""

import functools
import math
import os
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, ParamSpec, TypeVar

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor

from vitreous.common.checks import check_choice, check_whole
from vitreous.common.device import check_bytes, choose_device, choose_dtype, placed
from vitreous.common.untrusted_files import read_regular
from vitreous.data.image import UnreadableImage
from vitreous.data.image.decoding import ValueRange, pixels_of, upright
from vitreous.data.sources.base import Source, StoredImage
from vitreous.inference.cpu_backends import NAMES, Backend, CpuFunction, check_backend, is_worth_it, measured_images
from vitreous.inference.cuda_graphs import CudaGraphs
from vitreous.inference.forward_pass import model_input
from vitreous.inference.fp8 import check_fp8
from vitreous.inference.predictions import Columns
from vitreous.model.base_config import Task
from vitreous.model.protocol import Model, ModelConfig
from vitreous.model.top_labels import class_names
from vitreous.weights.native import int8_scales

if TYPE_CHECKING:
    from vitreous.model.cost import Cost


class Throughput(NamedTuple):
    """Number of images in a run, and the duration from reading the first image to the last result."""

    images: int
    seconds: float

    @property
    def images_per_second(self) -> float:
        return self.images / self.seconds if self.seconds else 0.0


Precision = Literal["fp32", "bf16", "fp8", "int8", "auto"]
NOT_A_NUMBER = "the model's output contains NaN or infinity"
P = ParamSpec("P")
T = TypeVar("T")
Output = TypeVar("Output", bound=Tensor | tuple[Tensor, ...])


STREAM = 1000  # assumed number of images if it is unknown
_PILLOW = threading.Lock()


@dataclass(frozen=True)
class SourceImage:
    """Image in a data source. A decoding thread reads it."""

    source: Source
    index: int


# A path, an encoded file, uint8 pixels [h, w] or [h, w, c], a Pillow image, or an image in a data source.
Input = str | os.PathLike[str] | bytes | np.ndarray | Image.Image | SourceImage
Images = Input | Iterable[Input] | Source


class Engine(ABC):
    """Decodes images in threads and runs a model on them. Subclasses define how to decode and what to output."""

    model: Any  # a `Model`, possibly wrapped by torch.compile
    tasks: tuple[Task, ...]  # supported model tasks
    takes: str  # description of supported models
    options: frozenset[str] = frozenset()  # arguments of `predictor_for` that only some predictors support
    max_serving_batch: int | None = None  # maximum batch size in the server; None for no limit
    max_pixels: int | None = None  # maximum number of decoded values to prefetch or batch; None for no limit
    precisions: tuple[Precision, ...] = ("fp32", "bf16", "auto")
    columns: Columns | None = None  # columns of a table of predictions; None if predictions are masks

    def __init__(
        self,
        model: Model,
        device: str | torch.device | None,
        precision: Precision,
        batch_size: int,
        workers: int,
        backend: Backend = "torch",
    ):
        config = getattr(model, "config", None)
        if not isinstance(config, ModelConfig) or config.task not in self.tasks:
            hint = f"; use {config.output_kind.predictor}" if isinstance(config, ModelConfig) else ""
            hint = "; load it first: vitreous.load(path)" if isinstance(model, str | os.PathLike) else hint
            raise TypeError(f"{type(self).__name__} takes {self.takes}, got {type(model).__name__}{hint}")
        check_choice("precision", precision, self.precisions)
        check_whole("batch_size", batch_size, 1, 2**20)
        check_whole("workers", workers, 0, 2**10)
        if config.channels not in (1, 3):
            raise ValueError(f"the model has {config.channels} input channels, but must have 1 (greyscale) or 3 (RGB)")
        self.device = choose_device(device, next(model.parameters()).device)
        check_memory(config, self.device)
        if precision == "fp8":
            check_fp8(model, self.device)
        self.dtype = choose_dtype("bf16" if precision == "fp8" else precision, self.device)
        usual = "bf16" if self.dtype == torch.bfloat16 else "fp32"
        self.precision = precision if precision in ("fp8", "int8") else usual
        if precision == "int8" and backend == "torch":  # PyTorch only simulates it
            backend = "auto"
        check_backend(backend, self.precision, self.device)
        self.model, self.config = placed(model, self.device, self.dtype), config
        # In int8, the model itself remains in float32 for explanations.
        self.network = int8_scales(model).applied(self.model) if precision == "int8" else self.model
        self.backend, self.expected = backend, 0.0
        self.functions: dict[Callable[[Any, Tensor], Any], Callable[[Tensor], Any]] = {}
        self.batch_size, self.workers, self.labels = batch_size, workers, class_names(config)
        self.throughput = Throughput(0, 0.0)

    @property
    def number_format(self) -> str:
        """The format of numbers in matrix products."""
        return self.precision if self.precision in ("fp8", "int8") else str(self.dtype)

    @abstractmethod
    def answers(self) -> dict[Task, Callable[[Images], Iterator[Any]]]:
        """Return, for each task that the model supports, a method that yields one result per image."""

    @abstractmethod
    def decode(self, image: StoredImage) -> UInt8[Tensor, "c h w"]:
        """Decode an image for the model. Called in worker threads."""

    @property
    def where(self) -> str:
        """Description of the device, the backend and the precision of the latest results."""
        if self.device.type != "cpu":
            return f"{self.device} ({self.precision})"
        functions = [function for function in self.functions.values() if isinstance(function, CpuFunction)]
        used = [function.description for function in functions if function.calls]
        return f"cpu ({', '.join(dict.fromkeys(used)) or NAMES['torch']}, {self.precision})"

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "functions": {}}  # copies build their own

    def fast(self, function: Callable[[Any, Tensor], Output]) -> Callable[[Tensor], Output]:
        """Return a function of a batch of images in its fastest form, from a function of the model and the images."""
        functions = self.functions  # another thread may replace them
        return functions[function] if function in functions else functions.setdefault(function, self.build(function))

    def build(self, function: Callable[[Any, Tensor], Output]) -> Callable[[Tensor], Output]:
        if self.device.type != "cpu":
            return CudaGraphs(functools.partial(function, self.network))
        return CpuFunction(function, self.network, self.precision, self.backend, lambda: self.expected)

    def prepare(self, images: int) -> None:
        """Choose the backend for a job of this size now, so that no later prediction waits for it."""
        if self.device.type != "cpu" or self.backend == "torch":
            return
        if self.backend == "auto" and not is_worth_it(self.network, self.precision, images):
            self.expected = -math.inf
            return
        self.expected = math.inf
        count = min(self.batch_size, measured_images(self.network))  # a whole batch may take long and much memory
        shape = (count, *self.config.image_size, self.config.channels)
        noise = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
        for answer in self.answers().values():
            list(answer(noise))

    def run(
        self, images: Images, step: Callable[[UInt8[Tensor, "b c h w"]], list[Any]], result: Callable[..., T]
    ) -> Iterator[T]:
        """Yield `result(name, *fields)` or `result(name, error=message)` for each image.

        `step` maps a batch of decoded images to the fields or the error message of each image.
        """
        started, count = time.perf_counter(), 0
        self.expected += expected_count(images)
        if any(module.training for module in self.network.modules()):  # to set the mode of all of them takes longer
            self.network.eval()
        try:
            for batch in self._batches(self._decoded(as_stream(images))):
                decoded = [image for _, image in batch if isinstance(image, Tensor)]
                with torch.inference_mode():
                    outputs = iter(step(torch.stack(decoded)) if decoded else [])
                for name, image in batch:
                    count += 1
                    output = image if isinstance(image, str) else next(outputs)
                    yield result(name, error=output) if isinstance(output, str) else result(name, *output)
        finally:
            self.throughput = Throughput(count, time.perf_counter() - started)

    def input(self, pixels: UInt8[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        return model_input(pixels, self.device, self.config.preprocessing).to(self.dtype)

    def _decoded(self, images: Iterator[Input]) -> Iterator[tuple[str, Tensor | str]]:
        """Yield each image name with the decoded image or an error message. At most two batches are prefetched."""
        pending: deque[tuple[str, Future[Tensor | str]]] = deque()
        pool = decode_pool(self.workers)
        try:
            for index, image in enumerate(images):
                if isinstance(image, np.ndarray):
                    image = image.copy()  # the caller may reuse the array for the next image
                pending.append((name_of(image, index), pool.submit(self._read, image)))
                while len(pending) > 2 * self.batch_size or (len(pending) > 1 and self._too_large(pending)):
                    name, future = pending.popleft()
                    yield name, future.result()
            while pending:
                name, future = pending.popleft()
                yield name, future.result()
        finally:
            pool.shutdown(cancel_futures=True)

    def _read(self, image: Input) -> Tensor | str:
        try:
            return self.decode(encoded(image, self.config.preprocessing.value_range))
        except OSError as error:
            return error.strerror or str(error)
        except (ValueError, MemoryError) as error:
            return str(error) or "not enough memory to decode the image"

    def _too_large(self, pending: Iterable[tuple[str, "Future[Tensor | str]"]]) -> bool:
        if self.max_pixels is None:
            return False
        done = (future.result() for _, future in pending if future.done())
        return sum(image.numel() for image in done if isinstance(image, Tensor)) > self.max_pixels

    def _batches(self, decoded: Iterable[tuple[str, Tensor | str]]) -> Iterator[list[tuple[str, Tensor | str]]]:
        """Group consecutive images of the same size. Errors do not start a new batch."""
        batch: list[tuple[str, Tensor | str]] = []
        shape: torch.Size | None = None
        for name, image in decoded:
            if isinstance(image, Tensor):
                full = self.max_pixels is not None and len(batch) * image.numel() > self.max_pixels
                if shape is not None and (full or shape != image.shape):
                    yield batch
                    batch = []
                shape = image.shape
            batch.append((name, image))
            if len(batch) == self.batch_size:
                yield batch
                batch, shape = [], None
        if batch:
            yield batch


# ---- Inputs ----------------------------------------------------------------------------------------------------------


def as_stream(images: Images) -> Iterator[Input]:
    """Iterate over one image or many. A 4D array is a batch of images."""
    if isinstance(images, Source):
        return (SourceImage(images, index) for index in range(len(images)))
    if isinstance(images, np.ndarray):
        return iter(images if images.ndim == 4 else [images])
    return iter([images] if isinstance(images, str | os.PathLike | bytes | Image.Image | SourceImage) else images)


def expected_count(images: Images) -> int:
    """Return the number of images, or an estimate if it is unknown."""
    if isinstance(images, Source | list | tuple) or (isinstance(images, np.ndarray) and images.ndim == 4):
        return len(images)
    return 1 if isinstance(images, str | os.PathLike | bytes | np.ndarray | Image.Image | SourceImage) else STREAM


def name_of(image: Input, index: int) -> str:
    """Return the path of an image if it has one, otherwise "image {index}"."""
    if isinstance(image, SourceImage):
        return image.source.name(image.index)
    if isinstance(image, str | os.PathLike):
        return os.fspath(image)
    if not isinstance(image, bytes | np.ndarray | Image.Image):
        raise TypeError(f"images must be paths, bytes, uint8 arrays or Pillow images, got {type(image).__name__}")
    return str(getattr(image, "filename", "")) or f"image {index}"


def encoded(image: Input, value_range: ValueRange | None = None) -> StoredImage:
    """Return the encoded bytes or the pixels of an image. See `Preprocessing` for `value_range`."""
    if isinstance(image, SourceImage):
        return image.source.image(image.index)
    if isinstance(image, str | os.PathLike):
        return read_regular(image)
    if isinstance(image, Image.Image):
        with _PILLOW:  # Pillow decodes lazily, and the same image can be in the input twice
            return _pixels(image, value_range)
    return image


def _pixels(image: Image.Image, value_range: ValueRange | None) -> np.ndarray:
    """Return the pixels of a Pillow image, rotated according to its EXIF orientation."""
    try:
        pixels = pixels_of(image, value_range)
        orientation = 1 if image.format == "TIFF" else image.getexif().get(0x0112, 1)  # Pillow rotates TIFF files
    except Exception as error:  # Pillow raises many kinds of exceptions
        raise UnreadableImage(f"cannot be decoded: {' '.join(str(error).split()) or type(error).__name__}") from error
    return upright(pixels, orientation if orientation in range(1, 9) else 1)


def decode_pool(workers: int) -> Executor:
    """Return a thread pool or, for 0 workers, an executor that runs tasks in the calling thread."""
    return ThreadPoolExecutor(workers, thread_name_prefix="vitreous-decode") if workers else _Inline()


class _Inline(Executor):
    """Executor that runs tasks in the calling thread, which is faster than starting threads for small inputs."""

    def submit(self, work: Callable[P, T], /, *arguments: P.args, **named: P.kwargs) -> Future[T]:
        done: Future[T] = Future()
        try:
            done.set_result(work(*arguments, **named))
        except Exception as error:
            done.set_exception(error)
        return done


# ---- Memory ----------------------------------------------------------------------------------------------------------
# Models that need more memory than the device has are rejected before they run.

SMALL_PIXELS, SMALL_TOKENS = 2**22, 2**12  # smaller models skip the estimate, which takes a second or two


def check_memory(config: ModelConfig, device: torch.device) -> None:
    """Raise ValueError if a forward pass of one image needs more memory than the device has."""
    if spent := large_cost(config):
        check_bytes(spent.inference_bytes, device, f"{input_description(config)} one image", "use a smaller image_size")


def input_description(config: ModelConfig, name: str = "the model") -> str:
    height, width = config.image_size
    return f"{name} takes images of {width} x {height} pixels, and"


def large_cost(config: ModelConfig) -> "Cost | None":
    """Return the compute and memory cost of one image, or None if the model is too small to need a check."""
    if math.prod(config.image_size) <= SMALL_PIXELS and config.backbone.num_tokens <= SMALL_TOKENS:
        return None
    from vitreous.model.cost import cost  # imports torch's fake tensors, which is slow

    return cost(config)
