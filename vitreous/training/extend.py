"""`vitreous.extend`: add images and classes to a `--train-only lda` classifier without needing the earlier images."""

import os
import shlex
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from vitreous.data.open import find_data
from vitreous.data.sources.base import UNSPLIT, FoundData, Source, order_labels
from vitreous.evaluation.discriminant import Classifier, Statistics
from vitreous.evaluation.features import FeatureSet, extract
from vitreous.inference.engine import Precision
from vitreous.inference.predictor import Predictor
from vitreous.model.protocol import Model
from vitreous.training.lda_head import fit_head, solver_device
from vitreous.weights.load import load
from vitreous.weights.native import load_folder, provenance_of, save_folder, statistics_of


@dataclass(frozen=True)
class Extension:
    """Result of `extend`: the folder of the extended classifier, and the images and classes that were added."""

    folder: Path
    added: dict[str, int]  # number of new images per class
    new_classes: tuple[str, ...]
    count: int  # number of images in total
    classifier: Classifier
    problems: tuple[str, ...]  # unreadable images, each with the reason
    seconds: float

    @cached_property
    def model(self) -> Model:
        """The extended model, loaded from its folder."""
        return load_folder(self.folder)


def extend(
    checkpoint: str | os.PathLike[str],
    data: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    data_root: str | os.PathLike[str] | None = None,
    batch_size: int = 64,
    device: str | torch.device | None = "auto",
    precision: Precision = "auto",
    workers: int | None = None,
) -> Extension:
    """Add images to a classifier that was trained with `train_only="lda"`, and write a new checkpoint folder.

    Images of existing classes refine those classes; other class names are added as new classes. The result is the same
    as if the classifier had been trained on all images at once, but it is not calibrated (see `vitreous.calibrate`).

    checkpoint: Checkpoint folder, such as runs/pets/best.
    data: New images, as for `vitreous.train`. If they have splits, only the train split is used.
    out: Folder for the extended checkpoint.
    data_root: Local copy of a data set that is otherwise downloaded.
    workers: Number of decoding threads; by default one per core, at most 16.

    >>> extend("runs/pets/best", "new-breeds/", "runs/pets-more").model.config.labels  # doctest: +SKIP
    """
    started = time.monotonic()
    model = load(os.fspath(checkpoint))
    statistics = stored_statistics(model, os.fspath(checkpoint))
    new_data = find_data(os.fspath(data), None if data_root is None else Path(data_root))
    source = new_images(new_data)
    predictor = Predictor(model, device, batch_size=batch_size, precision=precision, workers=workers)
    extracted = extract(predictor, source)

    counts = torch.bincount(extracted.labels, minlength=len(source.classes)).tolist()
    before, added = model.config.labels, {name: n for name, n in zip(source.classes, counts, strict=True) if n}
    labels = merged_labels(before, added)
    places = torch.tensor([labels.index(name) if name in added else -1 for name in source.classes])
    known = FeatureSet(extracted.features, places[extracted.labels])
    statistics = statistics.with_classes([labels.index(name) for name in before], len(labels))
    statistics += Statistics.of(known, len(labels), solver_device(predictor.device))

    model.replace_head(len(labels), labels)
    classifier = fit_head(model, statistics)
    record = {"data": new_data.name, "images": len(known), "classes": len(labels)}
    extensions = [*provenance_of(model).get("extensions", []), record]
    metrics = {"leave_one_out_top1": classifier.top1}
    save_folder(model, out, {"extensions": extensions, "metrics": metrics})
    new, seconds = tuple(name for name in labels if name not in before), time.monotonic() - started
    return Extension(Path(out), added, new, statistics.count, classifier, extracted.problems, seconds)


def stored_statistics(model: Model, checkpoint: str) -> Statistics:
    """Return the statistics of a checkpoint. If there are none, raise ValueError with the command to run instead."""
    tensors = statistics_of(model)
    if tensors is None:
        command = f"vitreous train --data DIR --init {shlex.quote(checkpoint)} --train-only lda"
        raise ValueError(
            f"{checkpoint} cannot be extended: its head was not computed by --train-only lda, or its weights have "
            f"changed since then; compute a new head from the images of all classes with `{command}`"
        )
    try:
        return Statistics.from_tensors(tensors, model.config.num_classes, model.config.feature_width)
    except ValueError as error:
        raise ValueError(f"{checkpoint}: invalid statistics: {error}") from error


def new_images(found: FoundData) -> Source:
    """Return the images to add: the train split, or all images if there are no splits. A single class is accepted."""
    if found.problems:
        raise ValueError(f"{found.name}: {found.problems[0]}")
    for split in ("train", UNSPLIT):
        if split in found.splits:
            return found.splits[split]
    raise ValueError(f"{found.name} has no train split, only {' and '.join(found.splits)}")


def merged_labels(before: Sequence[str], added: Iterable[str]) -> tuple[str, ...]:
    """Merge class names in the sort order of `before`. If `before` is not sorted, append the new names.

    >>> merged_labels(["cat", "dog"], ["bird", "dog"])
    ('bird', 'cat', 'dog')
    """
    merged = dict.fromkeys([*before, *added])
    for order in (order_labels, lambda names: tuple(sorted(names))):
        if order(before) == tuple(before):
            return order(merged)
    return tuple(merged)
