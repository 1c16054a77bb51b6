"""Predictors for labels, numbers and features, and the choice of the predictor for a model.

Images are preprocessed according to the model's `config.preprocessing`. The result for an image does not depend on the
other images in its batch.

b: batch; c: channels; h, w: height and width; d: feature width; k: classes.
"""

import bisect
import functools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, get_args

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from vitreous.common.checks import check_choice, check_whole, fail
from vitreous.common.threads import cores
from vitreous.data.image import fit
from vitreous.data.sources.base import StoredImage
from vitreous.inference.cpu_backends import Backend
from vitreous.inference.engine import NOT_A_NUMBER, Engine, Images, Output, Precision
from vitreous.inference.forward_pass import class_scores, mean_scores
from vitreous.inference.fp8 import CALIBRATION_IMAGES, to_fp8
from vitreous.inference.predictions import Columns, Embedding, MultiLabelPrediction, NumberPrediction, Prediction
from vitreous.inference.segment_predictor import SegmentPredictor
from vitreous.model.base_config import ModelConfig, Task
from vitreous.model.calibration import FRACTIONS, Calibration, check_coverage
from vitreous.model.options import ClassToken, MultiLabel, Numbers
from vitreous.model.protocol import Model
from vitreous.model.token_merging import merging
from vitreous.model.top_labels import Label, class_probabilities, top_labels

# ---- Labels and features ---------------------------------------------------------------------------------------------

FeatureKind = Literal["pooled", "class+mean"]
FEATURE_KINDS: tuple[FeatureKind, ...] = ("pooled", "class+mean")


NOT_CALIBRATED = "the model has not been calibrated; use `vitreous calibrate` with validation images"


class Answer(NamedTuple):
    """Fields of a `Prediction` that `interpret` computes from the scores of an image."""

    predictions: tuple[Label, ...]
    familiarity: float | None = None
    label_set: tuple[Label, ...] | None = None


class Embedder(Engine):
    """Computes features of images; base of the predictors with one result per image.

    The given model is never moved or converted. If the device or dtype differs, the predictor uses a copy; otherwise it
    shares the tensors of the model. Each run sets the model to evaluation mode.

    Args:
        device: A torch device or "auto", which prefers CUDA, then MPS, then the CPU. None uses the model's device if it
            is an accelerator; otherwise, None is the same as "auto".
        precision: "fp32", "bf16", "fp8", "int8" or "auto", which uses bf16 on GPUs that support it, and fp32 otherwise.
            "fp8" is for GPUs: the first 32 images determine the scales, and batches before the 32nd image are computed
            in bf16. "int8" is for CPUs, and models with int8 scales; see `vitreous.quantise`.
        flip: Average predictions (or features) over the image and its mirror image.
        compile: Use torch.compile. Batches are padded to a fixed size, so that the model is compiled only once.
        workers: Number of decoding threads. 0 decodes in the calling thread; None uses a thread per core, at most 16.
        decode: "exact" or "fast", which decodes large JPEGs at a reduced scale and can change the results.
        merge_tokens: Number of pairs of patches that every block of a ViT merges. This is faster, and can change the
            results.
        backend: "torch", "onnxruntime" or "openvino" computes on a CPU. "auto" uses PyTorch for small jobs, and the
            fastest one for large jobs; see `vitreous.inference.cpu_backends`. In int8, "torch" means "auto".
    """

    tasks: tuple[Task, ...] = ("classify", "multilabel", "regress", "embed")
    takes, options = "a model with one output per image", frozenset({"decode", "merge_tokens", "backend"})
    precisions = get_args(Precision)

    def __init__(
        self,
        model: Model,
        device: str | torch.device | None = None,
        batch_size: int = 32,
        precision: Precision = "fp32",
        flip: bool = False,
        compile: bool = False,
        workers: int | None = None,
        decode: Literal["exact", "fast"] = "exact",
        merge_tokens: int = 0,
        backend: Backend = "torch",
    ):
        check_choice("decode", decode, ("exact", "fast"))
        if compile and (precision == "int8" or backend not in ("auto", "torch")):
            fail("compile", compile, "False in int8, or with another backend than PyTorch")
        workers = min(cores(), 16) if workers is None else workers
        super().__init__(model, device, precision, batch_size, workers, "torch" if compile else backend)
        self.network, self.merge_tokens = merging(self.network, merge_tokens), merge_tokens
        self.flip, self.compiled, self.fast_decode = flip, compile, decode == "fast"
        self._first_images: Tensor | None = None  # until there are enough of them for fp8
        if precision == "fp8":
            self._first_images = torch.empty(
                0, self.config.channels, *self.config.image_size, device=self.device, dtype=self.dtype
            )

    @property
    def width(self) -> int:
        """Length of an embedding."""
        return self.config.feature_width

    def answers(self) -> dict[Task, Callable[[Images], Iterator[Embedding]]]:
        found: dict[Task, Callable[[Images], Iterator[Embedding]]] = {"embed": self.stream_embeddings}
        if self.config.num_classes:
            found[self.config.task] = self.stream_scores
        return found

    def stream_embeddings(self, images: Images, kind: FeatureKind = "pooled") -> Iterator[Embedding]:
        """Yield the features of each image.

        Args:
            kind: "pooled" for the input of the head, or "class+mean" for the class token concatenated with the mean
                patch token, as in DINOv2's linear probes.
        """
        function = self._features_of(kind)

        def step(pixels: Tensor) -> list[Any]:
            images, features = self.input(pixels), self.fast(function)
            vectors = features(images).float()
            vectors = (vectors + features(images.flip(-1)).float()) / 2 if self.flip else vectors
            return _finite_rows(vectors[: len(pixels)])

        return self.run(images, step, Embedding)

    def stream_logits(self, images: Images) -> Iterator[Embedding]:
        """Yield the outputs of each image or, with `flip`, the mean of two outputs (see `mean_scores`)."""
        self._check_head()
        return self.run(images, lambda pixels: _finite_rows(self._scores(pixels)), Embedding)

    def stream_logits_and_features(self, images: Images) -> Iterator[Embedding]:
        """Yield the logits followed by the features of each image, in one vector."""
        self._check_head()
        return self.run(images, lambda pixels: _finite_rows(self._logits_and_pooled(pixels)), Embedding)

    def stream_scores(self, images: Images) -> Iterator[Embedding]:
        """Yield what a subclass needs to predict the result of an image."""
        return self.stream_logits(images)

    def logits(self, images: Images) -> Float[Tensor, "n classes"]:
        """Return float32 logits (log probabilities with `flip`) on the CPU. All images must be readable."""
        return _stacked(self.stream_logits(images), self.config.num_classes)

    def embed(self, images: Images) -> Float[Tensor, "n d"]:
        """Return float32 pooled features before the head, on the CPU. All images must be readable."""
        return _stacked(self.stream_embeddings(images), self.width)

    def outputs(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b n"]:
        """Return the logits, or the pooled features of a model without a head, of preprocessed images on its device."""
        if self._first_images is not None:
            self._switch_to_fp8(images)
        return self.fast(_logits if self.config.num_classes else _pooled)(images)

    def decode(self, image: StoredImage) -> UInt8[Tensor, "c h w"]:
        config = self.config
        return fit(image, config.image_size, config.preprocessing, config.channels, self.fast_decode)

    def input(self, pixels: UInt8[Tensor, "b c h w"]) -> Float[Tensor, "b2 c h w"]:
        if self._first_images is not None:
            self._switch_to_fp8(super().input(pixels))
        if self.compiled:  # pad to a fixed size
            pixels = torch.cat([pixels, pixels.new_zeros(self.batch_size - len(pixels), *pixels.shape[1:])])
        return super().input(pixels)

    def _switch_to_fp8(self, images: Tensor) -> None:
        """Collect the first images. As soon as there are enough, use a model in 8 bits."""
        with _SWITCHING:
            if self._first_images is None:  # another thread was faster
                return
            self._first_images = torch.cat([self._first_images, images])[:CALIBRATION_IMAGES]
            if len(self._first_images) == CALIBRATION_IMAGES:
                self.network = to_fp8(self.network, self._first_images)
                self.functions, self._first_images = {}, None

    def _scores(self, pixels: Tensor) -> Tensor:
        images = self.input(pixels)  # may replace the model
        return class_scores(self.fast(_logits), images, self.flip, self.config.output)[: len(pixels)]

    def _logits_and_pooled(self, pixels: Tensor) -> Tensor:
        images = self.input(pixels)
        both = self.fast(_both)
        logits, pooled = (output.float() for output in both(images))
        if self.flip:
            others, mirrored = (output.float() for output in both(images.flip(-1)))
            logits, pooled = mean_scores(logits, others, self.config.output), (pooled + mirrored) / 2
        return torch.cat([logits, pooled], dim=1)[: len(pixels)]

    def build(self, function: Callable[[Any, Tensor], Output]) -> Callable[[Tensor], Output]:
        if self.compiled:
            return torch.compile(functools.partial(function, self.network))
        return super().build(function)

    def _features_of(self, kind: FeatureKind) -> Callable[[Any, Tensor], Tensor]:
        check_choice("features", kind, FEATURE_KINDS)
        if kind == "pooled":
            return _pooled
        if not isinstance(self.config.pool, ClassToken):  # the class token is untrained
            fail("features", kind, f"'pooled' for a model with {type(self.config.pool).__name__} pooling")
        return _class_and_mean

    def _check_head(self) -> None:
        if not self.config.num_classes:
            raise ValueError("the model has no classification head (num_classes is 0); use embed")


_SWITCHING = threading.Lock()  # a lock of each predictor could not be pickled


def _logits(model: Model, images: Tensor) -> Tensor:
    return model(images)


def _pooled(model: Model, images: Tensor) -> Tensor:
    return model.pooled(images)


def _both(model: Model, images: Tensor) -> tuple[Tensor, Tensor]:
    return model.logits_and_pooled(images)


def _class_and_mean(model: Model, images: Tensor) -> Tensor:
    features = model.features(images)
    return torch.cat([features.prefix[:, 0], features.patches.mean(dim=1)], dim=1)


class Predictor(Embedder):
    """Predicts labels or features of images with a classifier or encoder.

    Args:
        top: Number of labels per image.
        coverage: Also return label sets, which contain the true label with this probability (0.01 to 0.999). This needs
            a calibrated model; `vitreous train` and `vitreous calibrate` calibrate models.
        device, batch_size, precision, flip, compile, workers, decode, merge_tokens, backend: See `Embedder`.

    >>> import numpy as np
    >>> from vitreous import create
    >>> predictor = Predictor(create("ViT-Lite-6/4", num_classes=3), device="cpu", top=1)
    >>> [prediction] = predictor(np.zeros((48, 64, 3), dtype=np.uint8))
    >>> prediction.name, len(prediction.predictions)
    ('image 0', 1)
    """

    tasks, takes = ("classify", "embed"), "a classifier or encoder"
    options = frozenset({"top", "decode", "coverage", "merge_tokens", "backend"})

    def __init__(
        self,
        model: Model,
        device: str | torch.device | None = None,
        batch_size: int = 32,
        precision: Precision = "fp32",
        top: int = 5,
        flip: bool = False,
        compile: bool = False,
        workers: int | None = None,
        decode: Literal["exact", "fast"] = "exact",
        coverage: float | None = None,
        merge_tokens: int = 0,
        backend: Backend = "torch",
    ):
        check_whole("top", top, 1, 2**31)
        super().__init__(model, device, batch_size, precision, flip, compile, workers, decode, merge_tokens, backend)
        self.top, self.coverage = min(top, self.config.num_classes), coverage
        if coverage is not None:
            check_coverage(coverage)
            if self.config.calibration is None:
                raise ValueError(f"coverage is {coverage}, but {NOT_CALIBRATED}")
        self.columns = Columns(self.top, 0, self.config.calibration is not None, coverage is not None)
        usable = self.config.calibration is not None and self.model.familiarity is not None
        self._familiarity = self.model.familiarity.to(self.device) if usable else None

    def __call__(self, images: Images) -> list[Prediction]:
        """Predict the labels of one or more images, in order. A 4D array is a batch of images."""
        return list(self.stream(images))

    def stream(self, images: Images) -> Iterator[Prediction]:
        """Yield a prediction for each image, with at most three batches in memory."""
        self._check_head()
        return self.run(images, self._predictions, Prediction)

    def stream_scores(self, images: Images) -> Iterator[Embedding]:
        """Yield the input of `interpret` for each image: the logits and, if the model supports it, the familiarity."""
        self._check_head()
        return self.run(images, lambda pixels: _finite_rows(self._scores_and_familiarity(pixels)), Embedding)

    def _predictions(self, pixels: Tensor) -> list[Any]:
        answers = interpret(self, self._scores_and_familiarity(pixels), self.top, self.coverage)
        return [answer if math.isfinite(answer.predictions[0].probability) else NOT_A_NUMBER for answer in answers]

    def _scores_and_familiarity(self, pixels: Tensor) -> Tensor:
        if self._familiarity is None:
            return self._scores(pixels)
        logits, pooled = self._logits_and_pooled(pixels).tensor_split([self.config.num_classes], dim=1)
        return torch.cat([logits, self._familiarity.scores(pooled)[:, None]], dim=1)


def interpret(predictor: Engine, scores: Float[Tensor, "b n"], top: int, coverage: float | None) -> list[Answer]:
    """Convert the scores of `stream_scores` to the top labels, the familiarity and the label set of each image."""
    config, labels = predictor.config, predictor.labels
    probabilities = class_probabilities(scores[:, : config.num_classes], config)
    best = top_labels(probabilities, labels, top)
    familiar: Sequence[float | None] = [None] * len(best)
    sets: Sequence[tuple[Label, ...] | None] = [None] * len(best)
    if config.calibration is not None and scores.shape[1] > config.num_classes:
        familiar = familiarity_ranks(config.calibration, scores[:, config.num_classes])
    if config.calibration is not None and coverage is not None:
        sets = label_sets(config.calibration, probabilities, labels, coverage)
    return [Answer(*one) for one in zip(best, familiar, sets, strict=True)]


def familiarity_ranks(calibration: Calibration, scores: Float[Tensor, "b"]) -> list[float]:
    """Return, for each image, the fraction of validation images that are at most as familiar."""
    missing = len(FRACTIONS) - len(calibration.familiarities)
    fractions = (0.0, *FRACTIONS)
    return [fractions[bisect.bisect_right(calibration.familiarities, score) + missing] for score in scores.tolist()]


def label_sets(
    calibration: Calibration, probabilities: Float[Tensor, "b k"], labels: Sequence[str], coverage: float
) -> list[tuple[Label, ...]]:
    """Return the label set of each image, most probable label first."""
    sizes = (probabilities >= calibration.probability_threshold(coverage)).sum(dim=1).tolist()
    ranked = top_labels(probabilities, labels, max([*sizes, 1]))
    return [row[:size] for row, size in zip(ranked, sizes, strict=True)]


def _finite_rows(rows: Float[Tensor, "b n"]) -> list[Any]:
    with torch.inference_mode(False):
        rows = rows.cpu().clone()  # normal tensors, which autograd supports
    return [
        (row,) if finite else NOT_A_NUMBER
        for row, finite in zip(rows, rows.isfinite().all(dim=1).tolist(), strict=True)
    ]


def _stacked(results: Iterator[Embedding], width: int) -> Float[Tensor, "n d"]:
    rows = []
    for result in results:
        if result.vector is None:
            raise ValueError(f"{result.name}: {result.error}")
        rows.append(result.vector)
    return torch.stack(rows) if rows else torch.zeros(0, width)


# ---- Several labels, or numbers --------------------------------------------------------------------------------------


class MultiLabelPredictor(Embedder):
    """Predicts any number of labels per image with a multi-label classifier.

    Args:
        top: Number of most probable labels to return, in addition to those that reach their thresholds.
        device, batch_size, precision, flip, compile, workers, decode, merge_tokens, backend: See `Embedder`.
    """

    tasks, takes = ("multilabel",), "a multi-label classifier"
    options = frozenset({"top", "decode", "merge_tokens", "backend"})

    def __init__(self, model: Model, device: str | torch.device | None = None, *, top: int = 5, **options: Any):
        check_whole("top", top, 1, 2**31)
        super().__init__(model, device, **options)
        self.top = min(top, self.config.num_classes)
        self.columns = Columns(self.top, labels=True)

    def __call__(self, images: Images) -> list[MultiLabelPrediction]:
        """Predict the labels of one or more images, in order."""
        return list(self.stream(images))

    def stream(self, images: Images) -> Iterator[MultiLabelPrediction]:
        """Yield the labels of each image."""

        def step(pixels: Tensor) -> list[Any]:
            rows = [row if isinstance(row, str) else row[0] for row in _finite_rows(self._scores(pixels))]
            return [row if isinstance(row, str) else self.interpret(row, self.top) for row in rows]

        return self.run(images, step, MultiLabelPrediction)

    def interpret(self, scores: Float[Tensor, "classes"], top: int) -> tuple[tuple[Label, ...], tuple[Label, ...]]:
        """Return the labels that reach their thresholds, and the `top` labels, of an image."""
        probabilities = class_probabilities(scores, self.config)
        [ranked] = top_labels(probabilities[None], self.labels, self.config.num_classes)
        limits = thresholds(self.config).tolist()
        return tuple(label for label in ranked if label.probability >= limits[label.index]), ranked[:top]


def thresholds(config: ModelConfig) -> Float[Tensor, "classes"]:
    """Return the probability from which a class is predicted."""
    known = config.output.thresholds if isinstance(config.output, MultiLabel) else ()
    return torch.tensor(known or (0.5,) * config.num_classes, dtype=torch.float64)


class RegressPredictor(Embedder):
    """Predicts numbers with a regression model.

    Args:
        device, batch_size, precision, flip, compile, workers, decode, merge_tokens, backend: See `Embedder`.
    """

    tasks, takes = ("regress",), "a regression model"

    def __init__(self, model: Model, device: str | torch.device | None = None, **options: Any):
        super().__init__(model, device, **options)
        self.columns = Columns(targets=self.labels)

    def __call__(self, images: Images) -> list[NumberPrediction]:
        """Predict the numbers of one or more images, in order."""
        return list(self.stream(images))

    def stream(self, images: Images) -> Iterator[NumberPrediction]:
        """Yield the numbers of each image."""

        def step(pixels: Tensor) -> list[Any]:
            rows = _finite_rows(self._scores(pixels))
            return [row if isinstance(row, str) else (self.interpret(row[0]),) for row in rows]

        return self.run(images, step, NumberPrediction)

    def interpret(self, scores: Float[Tensor, "targets"]) -> dict[str, float]:
        """Return the number of each target, in the units of the training data."""
        return dict(zip(self.labels, numbers(scores, self.config).tolist(), strict=True))


def numbers(scores: Float[Tensor, "*b targets"], config: ModelConfig) -> Float[Tensor, "*b targets"]:
    """Return the outputs of a regression model in the units of its training data, in float64 on the CPU."""
    assert isinstance(config.output, Numbers)
    mean, std = (torch.tensor(values, dtype=torch.float64) for values in (config.output.mean, config.output.std))
    return scores.cpu().double() * std + mean


# ---- Choice of predictor ---------------------------------------------------------------------------------------------

AnyPredictor = Predictor | MultiLabelPredictor | RegressPredictor | SegmentPredictor
PREDICTORS: tuple[type[AnyPredictor], ...] = (Predictor, MultiLabelPredictor, RegressPredictor, SegmentPredictor)


def predictor_class(config: ModelConfig) -> type[AnyPredictor]:
    """Return the predictor class that supports the model's task."""
    return next(kind for kind in PREDICTORS if config.task in kind.tasks)


def predictor_for(
    model: Model,
    device: str | torch.device | None = None,
    *,
    batch_size: int = 32,
    precision: Precision = "fp32",
    flip: bool = False,
    workers: int | None = None,
    top: int | None = None,
    decode: Literal["exact", "fast"] = "exact",
    coverage: float | None = None,
    merge_tokens: int = 0,
    backend: Backend = "torch",
) -> AnyPredictor:
    """Create the predictor for the model's task. See `Predictor` for the arguments.

    `workers=None` and `top=None` select the defaults of the predictor. Arguments without effect are rejected.

    >>> from vitreous import create
    >>> type(predictor_for(create("ViT-Lite-6/4", num_classes=3), device="cpu", top=1)).__name__
    'Predictor'
    """
    kind = predictor_class(model.config)
    options: dict[str, Any] = {"workers": workers, "top": top, "decode": None if decode == "exact" else decode}
    options |= {"coverage": coverage, "merge_tokens": merge_tokens or None, "backend": backend}
    if backend in ("auto", "torch") and "backend" not in kind.options:  # it always uses PyTorch
        del options["backend"]
    options = {name: value for name, value in options.items() if value is not None}
    for name in options.keys() & {"top", "decode", "coverage", "merge_tokens", "backend"} - kind.options:
        fail(name, options[name], f"omitted for {kind.takes}")
    return kind(model, device, batch_size=batch_size, precision=precision, flip=flip, **options)
