"""The served models: loading, names, limits of the machine, and the functions that compute their answers."""

import base64
import io
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import torch
from PIL import Image
from torch import Tensor

import vitreous
from vitreous.inference.device import check_bytes, choose_device, large_cost, takes
from vitreous.inference.engine import Embedding, class_names
from vitreous.inference.mask_images import palette
from vitreous.inference.prediction_files import clean
from vitreous.inference.predictor import Predictor, Segmentation, SegmentPredictor
from vitreous.model.base_config import Task
from vitreous.model.config import ViTConfig
from vitreous.model.options import label_of
from vitreous.model.protocol import Model
from vitreous.serving.batch_queue import Compute
from vitreous.serving.errors import ApiError, unreadable
from vitreous.weights.hub import is_hub
from vitreous.weights.io.safetensors_file import copy_to_memory
from vitreous.weights.load import load
from vitreous.weights.native import provenance_of

Precision = Literal["fp32", "bf16", "auto"]
MAX_TOP = 1000  # classes of an answer
# Operations per second that no device of the kind reaches: a model that needs more within the timeout never answers.
FASTEST = {"cpu": 10**13}
FASTEST_ACCELERATOR = 10**16


@dataclass(frozen=True)
class ServedModel:
    """A loaded model, and a function for every task that it can compute."""

    id: str  # in requests
    name: str  # for people
    model: Model
    predictor: Predictor | SegmentPredictor
    labels: tuple[str, ...]  # of every class
    computes: Mapping[Task, Compute]

    def describe(self) -> dict[str, Any]:
        """The entry of `GET /v1/model`."""
        model = self.model
        transformer: dict[str, Any] = dict.fromkeys(
            ("patch_size", "grid", "width", "depth", "heads", "tokens", "position")
        )
        if model.config.backbone.has_attention:
            config = cast(ViTConfig, model.config.backbone)
            patches = config.grid[0] * config.grid[1]
            transformer = {
                "patch_size": list(config.patch_stride),
                "grid": list(config.grid),
                "width": config.width,
                "depth": config.depth,
                "heads": config.num_heads,
                "tokens": {"prefix": prefix_names(config), "patches": patches, "total": config.num_tokens},
                "position": label_of(config.position),
            }
        return {
            "id": self.id,
            "name": self.name,
            "task": model.config.task,
            "architecture": type(model).__name__,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "image_size": list(model.config.image_size),
            **transformer,
            "classes": model.config.num_classes,
            "labels": list(self.labels),
            "origin": _origin(provenance_of(model)),
            "version": vitreous.__version__,
        }


def prefix_names(config: ViTConfig) -> list[str]:
    """Names of the tokens before the patches, in order."""
    named = ["class"] * config.class_token + ["distillation"] * config.distillation_token
    return named + [f"register {i + 1}" for i in range(config.registers)]


def _origin(record: dict[str, Any]) -> str | None:
    """Source of the weights in a few words, if the checkpoint records it."""
    if "repository" in record:
        origin = f"hf-hub:{record['repository']}"
    elif "run" in record:
        origin = f"{record['run']}, step {record.get('step')}"
    elif "file" in record:
        origin = f"{record['file']} ({record.get('origin', 'origin unknown')})"
    else:
        return None
    return clean(origin)[:200]


def find_model(served: Sequence[ServedModel], id: str | None) -> ServedModel:
    """The model that a request names; the first if it names none."""
    for one in served:
        if id is None or one.id == id:
            return one
    raise ApiError(404, "unknown_model", f"unknown model {id!r}: use {', '.join(one.id for one in served)}")


# ---- Loading ----


def load_models(
    checkpoints: Sequence[str | Path],
    image_size: Sequence[int] = (),
    device: str = "auto",
    precision: Precision = "fp32",
    max_batch: int = 16,
) -> list[ServedModel]:
    """Load every checkpoint into memory, so that its file may be changed or deleted."""
    names = [str(one) for one in checkpoints]
    served = []
    for id, name in zip(unique_ids(names), names, strict=True):
        model = load(name, image_size=image_size or None)
        copy_to_memory(model)
        served.append(serve_model(model, id, clean(short_name(name)), device, precision, max_batch))
    return served


def serve_model(
    model: Model,
    id: str = "model",
    name: str = "model",
    device: str = "auto",
    precision: Precision = "fp32",
    max_batch: int = 16,
) -> ServedModel:
    """Make a model that is in memory ready to serve."""
    config = model.config
    labels = tuple(map(clean, class_names(config)))
    if config.task == "segment":
        masks = SegmentPredictor(cast(Any, model), device, precision, workers=0)
        # One image at a time: at full size, the scores of a batch may not fit into memory.
        segment: Compute = lambda images: [_mask(masks, labels, answer) for image in images for answer in masks(image)]  # noqa: E731
        return ServedModel(id, name, masks.model.eval(), masks, labels, {"segment": segment})
    # On a CPU, the thread of a batch decodes its images itself; beside a GPU, all cores help.
    workers = 0 if choose_device(device).type == "cpu" else None
    predictor = Predictor(cast(Any, model), device, max_batch, precision, workers=workers)
    computes: dict[Task, Compute] = {}
    if config.task == "classify":
        computes["classify"] = lambda images: _results(predictor.stream_logits(images), partial(torch.softmax, dim=-1))
    computes["embed"] = lambda images: _results(predictor.stream_embeddings(images), Tensor.numpy)
    return ServedModel(id, name, predictor.model.eval(), predictor, labels, computes)


def _results(answers: Iterable[Embedding], convert: Callable[[Tensor], Any]) -> list[Any]:
    return [unreadable(one.error) if one.vector is None else convert(one.vector) for one in answers]


def _mask(predictor: SegmentPredictor, labels: Sequence[str], answer: Segmentation) -> dict[str, Any] | ApiError:
    """A PNG whose palette indices are the classes, and the fraction of each class, the largest first."""
    if answer.mask is None:
        return unreadable(answer.error)
    image, file = Image.fromarray(answer.mask), io.BytesIO()
    image.putpalette(palette(predictor.background).tobytes())
    image.save(file, "PNG")
    fractions, colours = answer.fractions(predictor.config.num_classes), predictor.colours()
    order = sorted((index for index, share in enumerate(fractions) if share), key=lambda index: -fractions[index])
    return {
        "classes": [
            {"index": index, "label": labels[index], "color": colours[index], "share": fractions[index]}
            for index in order
        ],
        "width": image.width,
        "height": image.height,
        "mask": base64.b64encode(file.getvalue()).decode(),
    }


def unique_ids(names: Sequence[str]) -> list[str]:
    """Short unique ids that need no quoting in a URL, from names of files and folders."""
    ids: list[str] = []
    for name in names:
        parts = [part for part in re.split(r"[/\\:]", os.path.normpath(name)) if part not in ("", ".", "..")]
        if len(parts) > 1 and parts[-1] in ("best", "last"):  # the name of the run says more
            parts.pop()
        stem = re.sub(r"\.(npz|pth|pt|bin|safetensors|pdparams)$", "", parts[-1]) if parts else "model"
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-.") or "model"
        number, id = 2, plain
        while id in ids:
            id, number = f"{plain}-{number}", number + 1
        ids.append(id)
    return ids


def short_name(name: str) -> str:
    """A checkpoint's name without its folders, which are private.

    >>> short_name("/home/me/runs/pets/best"), short_name("hf-hub:timm/vit_tiny")
    ('pets/best', 'hf-hub:timm/vit_tiny')
    """
    parts = Path(os.path.abspath(name)).parts
    return name if is_hub(name) else "/".join(parts[-2:] if parts[-1] in ("best", "last") else parts[-1:])


def check_capacity(served: ServedModel, max_batch: int, timeout: float) -> None:
    """ValueError if a batch needs more memory than this machine has, or an image more time than a request."""
    model, device = served.model, next(served.model.parameters()).device
    cost = large_cost(model.config)
    if cost is None:
        return
    batch = 1 if "segment" in served.computes else max_batch  # segmenters compute one image at a time
    subject, advice = takes(model.config, clean(served.name)), "use a smaller --image-size or --max-batch"
    check_bytes(batch * cost.inference_bytes, device, f"{subject} a batch of {batch}", advice)
    if cost.flops > timeout * FASTEST.get(device.type, FASTEST_ACCELERATOR):
        raise ValueError(
            f"{subject} each needs {cost.flops:.1e} operations, which take longer than the timeout of {timeout:g} s: "
            "use a smaller --image-size or a longer --timeout"
        )
