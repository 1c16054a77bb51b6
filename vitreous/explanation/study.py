"""One model, one picture and what is asked about them: everything that the figures are drawn from."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from vitreous.common.checks import BadValue, Size, check_choice, check_whole, suggestion
from vitreous.common.regular_files import read_regular
from vitreous.data.image import UnreadableImage, fit
from vitreous.explanation.capture import layout_of, token_index, which_layers
from vitreous.explanation.methods import METHODS, NEED_A_HEAD, NEED_A_PICTURE
from vitreous.explanation.seen_region import Canvas, canvas_of
from vitreous.inference.answers import Label
from vitreous.inference.device import choose_device, placed
from vitreous.inference.mask_images import write_png
from vitreous.inference.memory_check import check_bytes, check_memory, takes
from vitreous.model.inputs import normalise
from vitreous.model.vit import ViT
from vitreous.weights.load import load_encoder

TOP = 5  # predictions that are told


@dataclass(frozen=True)
class Figure:
    """A picture that was written, and what it shows, in plain words."""

    path: Path
    title: str
    caption: str
    kind: Literal["map", "sheet", "chart"] = "map"


@dataclass(frozen=True)
class Study:
    """A model at rest, in float32, and the picture as it takes it."""

    model: ViT
    folder: Path
    layers: list[int]
    heads: list[int]
    batch_size: int = 32
    image: Float[Tensor, "1 c h w"] | None = None
    canvas: Canvas | None = None
    target: int | None = None  # the class that is asked about
    query: Size | None = None  # the patch that is asked about
    predictions: tuple[Label, ...] = ()

    @property
    def pictured(self) -> tuple[Float[Tensor, "1 c h w"], Canvas]:
        """The picture, where a figure needs one."""
        assert self.image is not None
        assert self.canvas is not None
        return self.image, self.canvas

    def label(self, index: int) -> str:
        labels = self.model.config.labels
        return labels[index] if labels else f"class {index}"

    def write(self, name: str, picture: np.ndarray | Image.Image) -> Path:
        path = self.folder / f"{name}.png"
        image = Image.fromarray(picture) if isinstance(picture, np.ndarray) else picture
        write_png(image, path, optimize=True)
        return path


def open_model(checkpoint: str | Path, image_size: Sequence[int], device: str) -> ViT:
    model = load_encoder(checkpoint, image_size or None)
    if not isinstance(model, ViT):
        raise ValueError(
            f"{checkpoint} is a {type(model).__name__}: only a Vision Transformer has attention to look at"
        )
    place, config = choose_device(device, torch.device("cpu")), model.config
    check_memory(config, place)
    attention = 4 * config.num_heads * config.num_tokens**2  # bytes of the maps of one layer
    check_bytes(attention, place, f"{takes(config)} its attention", "use a smaller --image-size")
    return placed(model, place, torch.float32).eval()


def open_study(
    model: ViT,
    picture: Path | None,
    folder: Path,
    target: str | None = None,
    layers: Sequence[int] = (),
    heads: Sequence[int] = (),
    query: Sequence[int] = (),
    batch_size: int = 32,
) -> Study:
    """Everything that can be wrong is found here, before anything is drawn."""
    count = model.config.num_heads
    for head in heads:
        check_whole("head", head, 0, count - 1)
    check_whole("batch_size", batch_size, 1, 2**16)
    if query and len(query) != 2:
        raise BadValue(f"query is {' '.join(map(str, query))!r}, but must be the row and the column of a patch")
    asked = list(heads) or list(range(count))
    wanted = class_index(model, target)
    plain = Study(model, folder, which_layers(model, layers), asked, batch_size, target=wanted)
    if picture is None:
        return plain
    if model.config.channels not in (1, 3):
        raise ValueError(f"the model takes {model.config.channels} channels, but pictures have 1 (grey) or 3 (RGB)")
    config, data = model.config, read_regular(picture)
    try:
        pixels = fit(data, config.image_size, config.preprocessing, config.channels)
        canvas = canvas_of(data, config)
    except UnreadableImage as error:
        raise ValueError(f"{picture}: {error}") from error
    device = next(model.parameters()).device
    image = normalise(pixels[None].to(device).float() / 255, config.preprocessing)
    place = (query[0], query[1]) if query else None
    if place is not None:
        token_index(layout_of(model, image), place)  # refuses a place that is not there
    predictions = predict(plain, image) if config.num_classes else ()
    if wanted is None and predictions:
        wanted = predictions[0].index
    return Study(model, folder, plain.layers, asked, batch_size, image, canvas, wanted, place, predictions)


@torch.no_grad()
def predict(study: Study, image: Tensor) -> tuple[Label, ...]:
    shares = study.model(image)[0].softmax(dim=-1)
    best = shares.topk(min(TOP, len(shares)))
    if not best.values.isfinite().all():
        raise ValueError("the model's answer is not a number")
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return tuple(Label(study.label(index), index, share) for index, share in pairs)


def class_index(model: ViT, name: str | None, field: str = "class") -> int | None:
    """A class by its label or, where no label is called so, by its number. Errors call it what the asker does."""
    if name is None:
        return None
    labels, count = model.config.labels, model.config.num_classes
    if not count:
        raise BadValue(f"{field} is {name!r}, but the model has no head, so it knows no classes")
    if name in labels:
        return labels.index(name)
    if len(name) <= 9 and name.isdecimal() and int(name) < count:  # int() refuses very long ones in words of its own
        return int(name)
    known = f"a label of the model{suggestion(name, labels)} or " if labels else ""
    raise BadValue(f"{field} is {name!r}, but must be {known}a number from 0 to {count - 1}")


def which_methods(model: ViT, with_picture: bool, asked: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """What can be shown, in its order, and why the rest cannot. Asking for what cannot be is an error."""
    for method in asked:
        check_choice("methods", method, METHODS)
    missing: dict[str, str] = {}
    for method in METHODS:
        if not with_picture and method in NEED_A_PICTURE:
            missing[method] = "no picture was given"
        elif not model.config.num_classes and method in NEED_A_HEAD:
            missing[method] = "the checkpoint has no head, so it gives a picture no class"
    for method in asked:
        if method in missing:
            raise BadValue(f"methods has {method!r}, but {missing[method]}")
    return [method for method in METHODS if method not in missing and (not asked or method in asked)], missing
