"""`vitreous.explain`: explain a model's prediction for an image and optionally write figures and a report."""

import contextlib
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import vitreous
from vitreous.common.atomic_files import atomic_file
from vitreous.common.checks import check_whole
from vitreous.common.device import check_bytes, choose_device, placed
from vitreous.common.text import duration
from vitreous.common.untrusted_files import read_json_object
from vitreous.data.image import UnreadableImage, fit
from vitreous.data.sources.base import StoredImage
from vitreous.explanation.attention_and_logit_lens import CapturedForward, capture
from vitreous.explanation.draw import Canvas, canvas_of
from vitreous.explanation.explain_report import Figure, draw_figures, write_report
from vitreous.explanation.methods import METHODS, Method
from vitreous.explanation.result import Explanation, available_methods, compute, request
from vitreous.inference import open_model
from vitreous.inference.engine import Input, check_memory, encoded, input_description, name_of
from vitreous.inference.forward_pass import model_input
from vitreous.model.protocol import Model
from vitreous.report.plots import can_draw, is_written_here

PAGE, NUMBERS = "report.html", "numbers.json"
FIGURES = tuple(f"{name}.png" for name in ("seen", "pca_foreground", *METHODS))
KEYS = {"class", "predictions", "faithfulness", "attention_distance", "lens", "left_out"}  # keys of numbers.json


def explain(
    model: Model | str | os.PathLike[str],
    image: str | os.PathLike[str] | bytes | np.ndarray | Image.Image | None,
    *,
    out: str | Path | None = None,
    target: str | int | None = None,
    methods: Method | Sequence[Method] = (),
    layers: Sequence[int] = (),
    heads: Sequence[int] = (),
    query: Sequence[int] = (),
    image_size: int | Sequence[int] | None = None,
    batch_size: int = 32,
    device: str | torch.device | None = "auto",
    command: str = "vitreous.explain(...)",
    begin: Callable[[str], None] = lambda method: None,
) -> Explanation:
    """Explain a model's prediction for one image.

    Args:
        model: A model or a checkpoint (folder, file, catalog name, hf-hub:owner/name). Of a segmenter, the encoder is
            explained. A model without attention has fewer methods.
        image: A path, an encoded file, uint8 pixels [h, w, c] or a Pillow image. None explains only the weights.
        out: Output folder for figures, numbers.json and report.html. None writes no files.
        target: Label or index of the class to explain. Default: the top prediction.
        methods: One or several methods. Default: all that the model supports. Occlusion and faithfulness are slow.
        layers: Layers to show, counted from 0, or from the end if negative. Default: all.
        heads: Heads to show for the "heads" method. Default: all.
        query: Row and column of the patch to use as query for attention and similarity.
        image_size: Input size. Default: the image size of the model. Position embeddings are resampled.
        batch_size: Batch size for occlusion and faithfulness.
        device: Device name: auto, cpu, cuda or mps.
        command: Command line to show in the report.
        begin: Callback that receives the name of each method before it runs.

    >>> model = vitreous.create("ViT-Lite-6/4", num_classes=3)
    >>> result = vitreous.explain(model, np.zeros((32, 32, 3), np.uint8), methods=["rollout"], device="cpu")
    >>> result.maps["rollout"].shape, len(result.predictions)
    ((8, 8), 3)
    """
    began, folder = time.perf_counter(), None if out is None else Path(out)
    if isinstance(image, str | os.PathLike):
        image = Path(image).expanduser()
        if image.is_dir():
            raise ValueError(f"image {str(image)!r} is a folder, but must be an image file")
        if not image.is_file():
            raise ValueError(f"image {str(image)!r} does not exist")
    if folder is not None:
        check_output(folder)
    check_whole("batch_size", batch_size, 1, 2**16)
    checkpoint = type(model).__name__ if isinstance(model, Model) else str(model)
    opened = open_backbone(model, image_size, device)
    methods = (methods,) if isinstance(methods, str) else methods
    chosen, skipped = available_methods(opened.config, image is not None, methods)
    result = request(opened.config, target, layers, heads, query)
    result.skipped = dict(skipped)
    captured, canvas = (None, None) if image is None else _open_image(opened, image, folder is not None)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    compute(result, opened, captured, chosen, batch_size, begin)
    if folder is not None:
        source = "none" if image is None else name_of(image, 0)
        figures = draw_figures(result, opened.config, canvas, folder)
        if not can_draw() and {"faithfulness", "distance", "lens"} & set(chosen):
            result.skipped["charts"] = 'matplotlib is not installed: pip install "vitreous[plot]"'
        facts = {"checkpoint": checkpoint, "image": source, **dict(opened.config.details())}
        facts |= {"device": str(next(opened.parameters()).device), "time": duration(time.perf_counter() - began)}
        result.paths = _write_files(result, figures, folder, facts, command)
    return result


def _write_files(
    result: Explanation, figures: dict[str, list[Figure]], folder: Path, facts: dict[str, str], command: str
) -> list[Path]:
    """Write numbers.json and report.html. Return the paths of all written files."""
    with atomic_file(folder / NUMBERS) as aside:  # written first, because check_output looks for it
        aside.write_text(json.dumps(result.numbers(), indent=2))
    path, image = Path(facts["checkpoint"]), facts["image"]
    name = path.resolve().parent.name if path.name in ("best", "last") else path.name
    title = f"{name}: weights" if image == "none" else f"{Path(image).name}, explained with {name}"
    facts["version"] = f"Vitreous {vitreous.__version__}"
    write_report(result, figures, folder / PAGE, title, facts, command)
    return [*(figure.path for group in figures.values() for figure in group), folder / NUMBERS, folder / PAGE]


def check_output(out: Path) -> None:
    """Raise ValueError if `explain` would overwrite a file that it did not write itself."""
    taken = [name for name in (PAGE, NUMBERS, *FIGURES) if os.path.lexists(out / name)]
    with contextlib.suppress(ValueError):
        if NUMBERS in taken and read_json_object(out / NUMBERS).keys() >= KEYS:
            return
    if foreign := [name for name in taken if name not in FIGURES or not is_written_here(out / name)]:
        raise ValueError(
            f"{out / foreign[0]} already exists and was not written by explain; delete it or choose another --out"
        )


def open_backbone(
    model: Model | str | os.PathLike[str], image_size: int | Sequence[int] | None, device: str | torch.device | None
) -> Model:
    """Return the backbone of a model or checkpoint, in float32 on the device."""
    opened = open_model(model, image_size).backbone
    place, config = choose_device(device, torch.device("cpu")), opened.config
    check_memory(config, place)
    weights = (shape.heads * shape.tokens * shape.keys for shape in config.attention_shapes)
    attention = 4 * max(weights, default=0)  # bytes of the largest layer
    check_bytes(
        attention, place, f"{input_description(config)} the attention of one layer", "use a smaller --image-size"
    )
    return placed(opened, place, torch.float32)


def _open_image(model: Model, image: Input, drawn: bool) -> tuple[CapturedForward, Canvas | None]:
    """Decode an image and capture a forward pass. If `drawn`, also return a canvas."""
    config = model.config
    if config.channels not in (1, 3):
        raise ValueError(f"the model has {config.channels} input channels, but must have 1 (greyscale) or 3 (RGB)")
    try:
        data: StoredImage = encoded(image, config.preprocessing.value_range)
        pixels = fit(data, config.image_size, config.preprocessing, config.channels)
        canvas = canvas_of(data, config) if drawn else None
    except UnreadableImage as error:
        raise ValueError(f"{name_of(image, 0)}: {error}") from error
    device = next(model.parameters()).device
    return capture(model, model_input(pixels[None], device, config.preprocessing)), canvas
