"""Served models: loading, ids, descriptions, and checks against the memory and speed of this machine."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vitreous.common.device import check_bytes, choose_device
from vitreous.common.text import clean
from vitreous.inference.engine import Precision, input_description, large_cost
from vitreous.inference.predictor import AnyPredictor, predictor_class, predictor_for
from vitreous.model.protocol import Model
from vitreous.model.top_labels import class_names
from vitreous.page.examples import Example, load_examples, sample_paths
from vitreous.page.gallery import Gallery, build_gallery
from vitreous.page.model_facts import model_facts, short_name, unique_ids
from vitreous.weights.io.safetensors_file import copy_to_memory
from vitreous.weights.load import load

# FLOP/s that no device reaches. A model that would need a faster device to meet the timeout is rejected.
FASTEST = {"cpu": 10**13}
FASTEST_ACCELERATOR = 10**16


@dataclass(frozen=True)
class ServedModel:
    """A loaded model with its predictor."""

    id: str  # used in requests
    name: str  # display name
    model: Model
    predictor: AnyPredictor
    labels: tuple[str, ...]  # class names
    gallery: Gallery | None = None  # images to compare with
    samples: tuple[Example, ...] = ()  # images that fit the model

    def describe(self) -> dict[str, Any]:
        """Return the entry for `GET /v1/models`."""
        gallery = None if self.gallery is None else len(self.gallery.names)
        samples = [{"name": sample.name, "label": sample.label} for sample in self.samples]
        facts = model_facts(self.model, self.id, self.name, self.labels)
        return {**facts, "computed_on": self.predictor.where, "gallery": gallery, "samples": samples}


# ---- Loading ----


def load_models(
    checkpoints: Sequence[str | Path],
    image_size: Sequence[int] = (),
    device: str = "auto",
    precision: Precision = "fp32",
    max_batch: int = 16,
) -> list[ServedModel]:
    """Load all checkpoints into memory. Afterwards, the files may be changed or deleted."""
    names = [str(checkpoint) for checkpoint in checkpoints]
    served = []
    for id, name in zip(unique_ids(names), names, strict=True):
        model = load(name, image_size=image_size or None)
        copy_to_memory(model)
        entry = serve_model(model, id, clean(short_name(name)), device, precision, max_batch)
        paths = sample_paths(name)
        served.append(replace(entry, samples=tuple(load_examples(paths)) if paths else ()))
    return served


def add_gallery(served: Sequence[ServedModel], folder: Path) -> list[ServedModel]:
    """Compute the features of the images in a folder for every model."""
    return [replace(entry, gallery=build_gallery(folder, entry.model)) for entry in served]


def serve_model(
    model: Model,
    id: str = "model",
    name: str = "model",
    device: str = "auto",
    precision: Precision = "fp32",
    max_batch: int = 16,
) -> ServedModel:
    """Create a ServedModel from a model in memory."""
    labels = tuple(map(clean, class_names(model.config)))
    batch_size = min(max_batch, predictor_class(model.config).max_serving_batch or max_batch)
    # On a CPU, each batch thread decodes its own images. With a GPU, all cores decode the images of a batch.
    workers = 0 if choose_device(device).type == "cpu" or batch_size == 1 else None
    predictor = predictor_for(model, device, batch_size=batch_size, precision=precision, workers=workers)
    return ServedModel(id, name, predictor.model.eval(), predictor, labels)


def check_capacity(served: ServedModel, timeout: float) -> None:
    """Raise ValueError if a batch needs more memory than is available, or one image takes longer than the timeout."""
    model, device = served.model, next(served.model.parameters()).device
    cost = large_cost(model.config)
    if cost is None:
        return
    batch = served.predictor.batch_size
    subject, advice = input_description(model.config, clean(served.name)), "use a smaller --image-size or --max-batch"
    check_bytes(batch * cost.inference_bytes, device, f"{subject} a batch of {batch}", advice)
    if cost.flops > timeout * FASTEST.get(device.type, FASTEST_ACCELERATOR):
        raise ValueError(
            f"{subject} each image needs {cost.flops:.1e} operations, which takes longer than the timeout of "
            f"{timeout:g} s; use a smaller --image-size or a longer --timeout"
        )
