"""What is served: models with a name each, ready to be asked."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from vitreous.inference.device import choose_device
from vitreous.inference.prediction_files import clean
from vitreous.inference.predictions import class_names
from vitreous.inference.predictor import Predictor
from vitreous.inference.segment_predictor import SegmentPredictor
from vitreous.model.kinds import AnyModel
from vitreous.model.segmenter import Segmenter
from vitreous.serving.errors import ApiError
from vitreous.weights.hub import is_hub
from vitreous.weights.io.safetensors_file import copy_to_memory
from vitreous.weights.load import load

Task = Literal["classify", "embed", "segment"]
Precision = Literal["fp32", "bf16", "auto"]


@dataclass(frozen=True)
class Served:
    """A model under the name that requests call it by."""

    id: str
    name: str  # for people
    model: AnyModel
    predictor: Predictor | SegmentPredictor | None = None

    @property
    def task(self) -> Task:
        if isinstance(self.model, Segmenter):
            return "segment"
        return "classify" if self.model.config.num_classes else "embed"

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """A name for every class, if only its number."""
        return tuple(clean(name) for name in class_names(self.model.config))


def pick(served: Sequence[Served], id: str | None) -> Served:
    """The model that a request asks for; the first where it does not say."""
    for one in served:
        if id is None or one.id == id:
            return one
    known = ", ".join(one.id for one in served)
    raise ApiError(404, "unknown_model", f"there is no model {id!r} here: use {known}")


def ids_for(names: Sequence[str]) -> list[str]:
    """Short names that differ and need no quoting in a URL, from those of files and folders.

    >>> ids_for(["runs/pets/best", "runs/birds/best", "B_16.npz", "hf-hub:timm/vit small"])
    ['pets', 'birds', 'B_16', 'vit-small']
    """
    ids: list[str] = []
    for name in names:
        parts = [part for part in re.split(r"[/\\:]", os.path.normpath(name)) if part not in ("", ".", "..")]
        if len(parts) > 1 and parts[-1] in ("best", "last"):  # of a run, whose own name says more
            parts.pop()
        stem = re.sub(r"\.(npz|pth|pt|bin|safetensors|pdparams)$", "", parts[-1]) if parts else "model"
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-.") or "model"
        number, id = 2, plain
        while id in ids:
            id, number = f"{plain}-{number}", number + 1
        ids.append(id)
    return ids


def short_name(name: str) -> str:
    """As it was called on the command line, without the folders that are nobody else's business.

    >>> short_name("/home/me/runs/pets/best"), short_name("hf-hub:timm/vit_tiny")
    ('pets/best', 'hf-hub:timm/vit_tiny')
    """
    parts = Path(os.path.abspath(name)).parts
    return name if is_hub(name) else "/".join(parts[-2:] if parts[-1] in ("best", "last") else parts[-1:])


def open_served(
    checkpoints: Sequence[str | Path],
    image_size: Sequence[int] = (),
    device: str = "auto",
    precision: Precision = "fp32",
    max_batch: int = 16,
) -> list[Served]:
    """Load every checkpoint into memory, so that its file may change or disappear meanwhile."""
    names = [str(one) for one in checkpoints]
    served = []
    for id, name in zip(ids_for(names), names, strict=True):
        model = load(name, image_size=image_size or None)
        copy_to_memory(model)
        served.append(serving(model, id, clean(short_name(name)), device, precision, max_batch))
    return served


def serving(
    model: AnyModel,
    id: str = "model",
    name: str = "model",
    device: str = "auto",
    precision: Precision = "fp32",
    max_batch: int = 16,
) -> Served:
    """A model that is in memory, made ready to be asked."""
    if isinstance(model, Segmenter):
        predictor: Predictor | SegmentPredictor = SegmentPredictor(model, device, precision, workers=0)
    else:
        # On a CPU a batch's thread has nothing better to do than to decode; beside a GPU all processors help.
        workers = 0 if choose_device(device).type == "cpu" else None
        predictor = Predictor(model, device, max_batch, precision, workers=workers)
    return Served(id, name, predictor.model.eval(), predictor)
