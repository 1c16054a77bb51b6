"""Comparison of an exported file, in its own runtime, with the predictor of the model on real images."""

import contextlib
import io
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image

from vitreous.common.checks import Size
from vitreous.data.image import decode, fit
from vitreous.data.open import open_data
from vitreous.data.sources.named import NAMES
from vitreous.exporting.outputs import Outputs
from vitreous.inference.engine import Images, as_stream, encoded
from vitreous.inference.predict_images import expand
from vitreous.inference.predictor import predictor_for
from vitreous.inference.segment_predictor import SegmentPredictor, best_at
from vitreous.model.protocol import Model
from vitreous.page import STATIC
from vitreous.runtimes.sessions import Session

MAX_DIFFERENCE = 1e-4  # of fp32 outputs, relative to the largest output if it exceeds 1
MIN_AGREEMENT = 0.95  # of the predictions in other precisions
TENSOR = "model_tensor"  # name of the file whose input is preprocessed
Pixels = UInt8[np.ndarray, "_ _ _"]  # height, width, channels


class ExportFailed(ValueError):
    """Raised if an exported file does not reproduce the outputs of the model. The file is removed."""


@dataclass(frozen=True)
class Check:
    """Comparison of a file with the model on real images, one at a time, from decoded pixels to outputs.

    agreement: Fraction of images (of pixels for a segmenter) with the same best label. None for a model without labels.
    differences: Largest absolute difference of each output.
    scales: Largest absolute value of each output.
    """

    file: str
    image_size: Size
    images: int
    agreement: float | None
    differences: dict[str, float]
    scales: dict[str, float]
    images_per_second: float
    torch_images_per_second: float

    def problem(self, precision: str) -> str | None:
        """Return why the file is rejected, or None if it is accepted."""
        for name, difference in self.differences.items():
            limit = MAX_DIFFERENCE * max(self.scales[name], 1)
            if not math.isfinite(difference):
                return f"{name} contain NaN or infinity"
            if precision == "fp32" and difference > limit:
                return f"{name} differ by {difference:.1e} from the model; the maximum is {limit:.1e}"
        agreement = 1.0 if self.agreement is None else self.agreement
        if (1 - agreement) * self.images > max(1, (1 - MIN_AGREEMENT) * self.images):
            return f"the labels agree for {agreement:.1%} of the images; the minimum is {MIN_AGREEMENT:.0%}"
        return None


def check(
    session: Session, file: str, model: Model, images: Sequence[Pixels], names: Sequence[str], size: bool
) -> Check:
    """Run images in `session` and with the predictor of `model`, and compare the outputs `names`.

    `size`: True if the file has the image size as its second input.
    """
    reference = reference_of(model, tuple(names))
    seconds, torch_seconds, agreements = 0.0, 0.0, []
    compared = [name for name in names if name != "mask"]  # where two labels are equally good, rounding decides
    differences, scales = dict.fromkeys(compared, 0.0), dict.fromkeys(compared, 0.0)
    for index, image in enumerate(images):
        started = time.perf_counter()
        pixels, expected = reference(image)
        torch_seconds += time.perf_counter() - started
        inputs = {"pixels": pixels} if file.startswith(TENSOR) else {"images": image[None]}
        inputs |= {"size": np.array(model.config.image_size)} if size else {}
        if index == 0:
            session(inputs)  # the first run allocates memory
        started = time.perf_counter()
        found = session(inputs)
        seconds += time.perf_counter() - started
        for name in compared:
            difference = np.abs(found[name].astype(np.float32) - expected[name].astype(np.float32)).max(initial=0.0)
            differences[name] = float(np.maximum(differences[name], difference))  # keeps NaN
            scales[name] = max(scales[name], float(np.abs(expected[name]).max(initial=0)))
        agreements.append(label_agreement(found, expected))
    agreement = float(np.mean([one for one in agreements if one is not None])) if None not in agreements else None
    speeds = (len(images) / seconds, len(images) / torch_seconds)
    return Check(file, model.config.image_size, len(images), agreement, differences, scales, *speeds)


def reference_of(model: Model, names: tuple[str, ...]) -> Callable[[Pixels], tuple[np.ndarray, dict[str, np.ndarray]]]:
    """Return a function from an image to the preprocessed image and the outputs of the model's own predictor."""
    predictor = predictor_for(model, "cpu", workers=0)
    outputs = Outputs(model, names)

    @torch.inference_mode()
    def run(image: Pixels) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        config = model.config
        if names == ("logits",):  # a single window of a segmenter
            window = predictor.input(fit(image, config.image_size, config.preprocessing, config.channels)[None])
            return window.numpy(), {"logits": model(window).numpy()}
        pixels = predictor.decode(image)[None]
        if isinstance(predictor, SegmentPredictor):
            scores = predictor.scores(pixels)
            mask = best_at(scores[0], (image.shape[0], image.shape[1]))[None]
            return predictor.input(pixels).numpy(), {"logits": scores.numpy(), "mask": mask.numpy()}
        preprocessed = predictor.input(pixels)
        values = (value.numpy() for value in outputs(preprocessed))
        return preprocessed.numpy(), dict(zip(names, values, strict=True))

    return run


def label_agreement(found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> float | None:
    """Return the fraction of equal labels: of the image, of its pixels, or of its classes if it can have several."""
    if "mask" in expected:
        return float((found["mask"] == expected["mask"]).mean())
    if "probabilities" in expected:
        return float((found["logits"].argmax(1) == expected["logits"].argmax(1)).mean())
    return None


# ---- Images ----------------------------------------------------------------------------------------------------------


def validation_images(data: Images | Sequence[str] | str | None, channels: int, most: int) -> list[Pixels]:
    """Decode at most `most` images of a data set, files, folders or globs. None uses photos that Vitreous contains."""
    if data is None:
        return _example_images(channels)
    words = [data] if isinstance(data, str) else data
    if isinstance(words, list | tuple) and all(isinstance(word, str) for word in words):
        data = _open(words)
    images = list(as_stream(data))
    chosen = [images[round(place)] for place in np.linspace(0, len(images) - 1, min(most, len(images)))]
    decoded = []
    for image in chosen:
        with contextlib.suppress(ValueError, OSError):  # files that are not readable are not compared
            decoded.append(decode(encoded(image), channels).permute(1, 2, 0).numpy())
    if not decoded:
        raise ValueError(f"none of the {len(images)} images could be read")
    return decoded


def _open(data: Sequence[str]) -> Images:
    """Open a data set by its name, or find image files."""
    name = data[0].partition(":")[0]
    if len(data) == 1 and (name in NAMES or name == "hf") and not Path(data[0]).exists():
        splits = open_data(data[0], labelled=False)
        return splits.val
    return expand(data)


def _example_images(channels: int) -> list[Pixels]:
    """Return three photos, each whole, as a portrait and as a thumbnail."""
    found = []
    for file in sorted((STATIC / "examples").iterdir()):
        with Image.open(io.BytesIO(file.read_bytes())) as image:
            photo = np.asarray(image.convert("L" if channels == 1 else "RGB"))
        photo = photo.reshape(*photo.shape[:2], channels)
        found += [photo, photo[:, : photo.shape[1] // 3], photo[::9, ::9]]
    return [np.ascontiguousarray(image) for image in found]
