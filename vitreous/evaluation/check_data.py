"""`vitreous.check_data`: check a data set and, given a model, also find label errors, near duplicates and outliers.

n: images; d: feature width.
"""

import copy
import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Float
from rich.progress import Progress, TaskID
from torch import Tensor

from vitreous.common.checks import check_choice, fail
from vitreous.common.text import SafeConsole
from vitreous.data import doctor
from vitreous.data.doctor.check import DataReport
from vitreous.data.doctor.findings import LabelError, ModelFindings, NearDuplicates, Outlier, Sample
from vitreous.data.sources.base import Source, StoredImage
from vitreous.data.sources.targets import LabelTargets, NumberTargets, TargetKind
from vitreous.evaluation.features import FeatureSet, extract_rows
from vitreous.evaluation.findings_page import write_page
from vitreous.evaluation.label_errors import find_label_errors
from vitreous.evaluation.near_duplicates import (
    CORRELATION,
    Neighbours,
    candidate_pairs,
    correlations,
    groups,
    neighbours,
)
from vitreous.inference.engine import Precision
from vitreous.inference.predict_images import open_encoder
from vitreous.inference.predictor import Embedder, FeatureKind
from vitreous.model.options import ClassToken
from vitreous.model.protocol import Model

SIZE = 224  # maximum default image size; more pixels hardly help to recognise a class
NEIGHBOURS = 10


def check_data(
    data: str | os.PathLike[str],
    model: Model | str | os.PathLike[str] | None = None,
    *,
    image_size: int | Sequence[int] | None = None,
    data_root: str | os.PathLike[str] | None = None,
    task: Literal["classify", "multilabel", "regress"] = "classify",
    target: str | Sequence[str] = (),
    out: str | os.PathLike[str] | None = None,
    batch_size: int = 64,
    device: str | torch.device | None = "auto",
    precision: Precision = "auto",
    seed: int = 0,
) -> DataReport:
    """Check every image and mask of a data set. With a model, also find label errors, near duplicates and outliers.

    Use a model that was not trained on these labels, because it would otherwise repeat the label errors. A pretrained
    encoder is best.

    data: Data set, as for `vitreous.train`.
    model: Model, or checkpoint (a folder, a weight file, a catalog name, or hf-hub:owner/name).
    image_size: Image size for the model. Defaults to the image size of the model, but at most 224.
    data_root: Local copy of a data set that is otherwise downloaded.
    task, target: Content of a table and its columns, as for `vitreous.train`.
    out: A .png file for a contact sheet of every class or, with a model, an .html file for a page with the findings.
    seed: Seed for the cross-validation.

    >>> import vitreous
    >>> vitreous.check_data("digits").problems
    0
    """
    spec, root, out = (
        os.fspath(data),
        None if data_root is None else Path(data_root),
        None if out is None else Path(out),
    )
    page = out if out is not None and out.suffix.lower() == ".html" else None
    if page is not None and model is None:
        fail("out", page, "a .png file name (.html requires --checkpoint)")
    encoder = None if model is None else open_whole_image_encoder(model, image_size)  # fail before the slow check
    columns = (target,) if isinstance(target, str) else tuple(target)
    kinds: dict[str, TargetKind] = {"multilabel": LabelTargets(columns), "regress": NumberTargets(columns)}
    check_choice("task", task, ("classify", *kinds))
    if (targets := kinds.get(task)) is None and columns:
        fail("target", columns, "omitted without --task multilabel or regress")
    report = doctor.check_data(spec, root, None if page is not None else out, targets)
    if encoder is None or (report.masks is not None and not report.masks.coverage):
        return report
    preprocessing = encoder.config.preprocessing
    if preprocessing.value_range is None:
        preprocessing = dataclasses.replace(preprocessing, value_range=report.value_range)
        encoder.config = encoder.config.override({"preprocessing": preprocessing})
    found, splits, _ = doctor.open_splits(spec, root, targets)
    predictor = Embedder(encoder, device, batch_size, precision)
    images = embed_splits(predictor, splits, found.labelled and targets is None)
    name = os.fspath(model) if isinstance(model, str | os.PathLike) else type(model).__name__
    findings = find_suspicions(images, name, encoder.config.image_size, report, predictor.device, seed)
    if page is not None:
        findings = dataclasses.replace(findings, page=str(write_page(page, report, findings, splits)))
    return dataclasses.replace(report, suspicions=findings)


# ---- Features of all images ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EmbeddedImages:
    """Features of all readable images of a data set, with the split and index of each image."""

    vectors: Float[Tensor, "n d"]
    splits: Mapping[str, Source]
    places: list[tuple[str, int]]  # split and index
    labelled: bool

    @property
    def classes(self) -> tuple[str, ...]:
        return next(iter(self.splits.values())).classes

    @property
    def labels(self) -> Tensor:
        return torch.tensor([int(self.splits[split].labels[index]) for split, index in self.places])

    def sample(self, row: int) -> Sample:
        split, index = self.places[row]
        source = self.splits[split]
        return Sample(split, source.classes[source.labels[index]] if self.labelled else "", source.name(index))


def open_whole_image_encoder(
    model: Model | str | os.PathLike[str], image_size: int | Sequence[int] | None = None
) -> Model:
    """Return the encoder of a model with preprocessing that does not crop. The default image size is at most SIZE."""
    encoder = open_encoder(model, image_size)
    if not image_size and max(encoder.config.image_size) > SIZE:
        height, width = (max(SIZE // stride, 1) * stride for stride in encoder.config.patch_stride)
        encoder = encoder.resized((height, width))
    encoder = copy.copy(encoder)  # shares all tensors
    whole = dataclasses.replace(encoder.config.preprocessing, crop_fraction=1.0)
    encoder.config = encoder.config.override({"preprocessing": whole})
    return encoder


def embed_splits(predictor: Embedder, splits: Mapping[str, Source], labelled: bool = True) -> EmbeddedImages:
    """Compute the features of all readable images."""
    kind: FeatureKind = "class+mean" if isinstance(getattr(predictor.config, "pool", None), ClassToken) else "pooled"
    places, vectors = [], []
    for split, source in splits.items():
        console = SafeConsole(stderr=True)
        with Progress(console=console, disable=not console.is_terminal) as bar:
            task = bar.add_task(f"embedding {split}", total=len(source))
            shown = functools.partial(_show, bar, task)
            features, labels, _ = extract_rows(predictor, source, kind, shown)
        readable = (labels >= 0).nonzero()[:, 0]
        places += [(split, index) for index in readable.tolist()]
        vectors.append(features[readable])
    if not places:
        raise ValueError(f"none of the {sum(map(len, splits.values()))} images could be read")
    return EmbeddedImages(torch.cat(vectors), splits, places, labelled)


def _show(bar: Progress, task: TaskID, stage: str, done: int, total: int) -> None:
    bar.update(task, completed=done)


# ---- Findings --------------------------------------------------------------------------------------------------------


def find_suspicions(
    images: EmbeddedImages,
    checkpoint: str,
    image_size: tuple[int, int],
    report: DataReport,
    device: torch.device,
    seed: int = 0,
) -> ModelFindings:
    """Find likely label errors, near duplicates and outliers."""
    device = torch.device("cpu") if device.type == "mps" else device  # MPS does not support float64
    accuracy, errors = None, list[LabelError]()
    if images.labelled and len(set(images.labels.tolist())) > 1:
        accuracy, errors = label_errors(images, device, seed)
    near, outlying = list[NearDuplicates](), list[Outlier]()
    if len(images.places) > NEIGHBOURS:
        near = near_duplicates(images, report, device)
        outlying = outliers(images, neighbours(images.vectors, NEIGHBOURS, device))
    return ModelFindings(
        checkpoint,
        image_size,
        accuracy,
        errors,
        [group for group in near if group.leaks],
        [group for group in near if not group.leaks],
        outlying,
    )


def label_errors(images: EmbeddedImages, device: torch.device, seed: int) -> tuple[float, list[LabelError]]:
    """Return the accuracy of the cross-validated classifier and the ranked label errors."""
    result = find_label_errors(FeatureSet(images.vectors, images.labels), len(images.classes), seed, device)
    errors, confidence, suggested = [], result.confidence, result.suggested
    for row in result.ranked().tolist():
        sample, other = images.sample(row), int(suggested[row])
        probability = float(result.probabilities[row, other])
        errors.append(
            LabelError(**vars(sample), suggested=images.classes[other], confidence=float(confidence[row]),
                       probability=probability)
        )  # fmt: skip
    return result.accuracy, errors


def near_duplicates(images: EmbeddedImages, report: DataReport, device: torch.device) -> list[NearDuplicates]:
    """Return groups of near duplicates. Identical images are omitted, because they are already in the report."""
    copies = {
        sample: number
        for number, group in enumerate([*report.leaks, *report.conflicts, *report.duplicates])
        for sample in group
    }
    pairs = candidate_pairs(images.vectors, device)

    def stored(row: int) -> StoredImage:
        split, index = images.places[row]
        return images.splits[split].image(index)

    scores = correlations(pairs, stored, device, report.value_range)
    same = {}
    for (a, b), score in zip(pairs.tolist(), scores.tolist(), strict=True):
        first, second = images.sample(a), images.sample(b)
        if score >= CORRELATION and (first not in copies or copies[first] != copies.get(second)):
            same[a, b] = score
    best: dict[int, float] = {}
    for (a, _), score in same.items():
        best[a] = max(score, best.get(a, 0.0))
    duplicates = [
        NearDuplicates([images.sample(row) for row in group], min(max(best.get(row, 0.0) for row in group), 1.0))
        for group in groups(list(same))
    ]
    return sorted(duplicates, key=lambda group: -group.correlation)


def outliers(images: EmbeddedImages, closest: Neighbours) -> list[Outlier]:
    """Return images that are unusually far from their neighbours.

    The mean distance of an outlier exceeds the upper quartile by more than 1.5 interquartile ranges.
    """
    distance = 1 - closest.similarity.mean(dim=1)
    low, high = distance.double().quantile(torch.tensor([0.25, 0.75], dtype=torch.float64)).tolist()
    rows = (distance > high + 1.5 * (high - low)).nonzero()[:, 0]
    rows = rows[distance[rows].argsort(descending=True, stable=True)]
    return [Outlier(**vars(images.sample(row)), distance=float(distance[row])) for row in rows.tolist()]
