"""Feature extraction for probes, with an optional cache on disk, and top-k accuracy.

A cache file is `features-<digest>.safetensors`. The digest covers everything that features depend on (weights, config,
images, labels, precision), so a file is never stale. Image files are identified by name, size and modification time.

n: images; d: feature width.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError, safe_open
from torch import Tensor

import vitreous
from vitreous.common.atomic_files import atomic_file
from vitreous.common.checks import fail
from vitreous.common.progress import Report, silent, tracked
from vitreous.common.text import one_line
from vitreous.data.sources.base import FileSource, Source, SpanSource, Subset
from vitreous.inference.engine import NOT_A_NUMBER
from vitreous.inference.predictor import Embedder, FeatureKind
from vitreous.model.protocol import Model
from vitreous.weights.io.safetensors_file import write_tensors
from vitreous.weights.native import int8_scales, weights_digest

BUDGET = 512 << 20  # maximum size in bytes of a probe's temporary tensors, in addition to features and weights


@dataclass(frozen=True)
class FeatureSet:
    """Features of the readable images of a source, on the CPU. `problems` lists unreadable images with reasons."""

    features: Float[Tensor, "n d"]  # float32, or float16 if computed in bfloat16
    labels: Int[Tensor, "n"]
    problems: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    def pick(self, indices: Int[Tensor, "m"]) -> "FeatureSet":
        return FeatureSet(self.features[indices], self.labels[indices])


class FeatureRows(NamedTuple):
    """Features and labels of all images of a source, in order."""

    features: Float[Tensor, "n d"]  # zero for unreadable images
    labels: Int[Tensor, "n"]  # -1 if the image is unreadable
    problems: list[str]  # unreadable images, each with the reason


def extract(predictor: Embedder, source: Source, kind: FeatureKind = "pooled", progress: Report = silent) -> FeatureSet:
    """Compute the features of all readable images.

    A million vectors of width 768 take 3 GB, or half as much in bfloat16.
    """
    # float16 is more precise than bfloat16 but has a smaller range, so extract_rows checks for overflow.
    stored = torch.float32 if predictor.dtype == torch.float32 else torch.float16
    features, labels, problems = extract_rows(predictor, source, kind, progress, stored)
    if problems:
        features, labels = features[labels >= 0], labels[labels >= 0]
    if not len(features):
        raise ValueError(f"none of the {len(source)} images could be read")
    return FeatureSet(features, labels, tuple(problems))


def extract_rows(
    predictor: Embedder,
    source: Source,
    kind: FeatureKind = "pooled",
    progress: Report = silent,
    stored: torch.dtype = torch.float32,
) -> FeatureRows:
    """Compute the features of all images. Rows of unreadable images are zero."""
    width = predictor.width * (2 if kind == "class+mean" else 1)
    labels, problems = torch.from_numpy(source.labels.copy()), []
    features = torch.zeros(len(source), width, dtype=stored)
    vectors = predictor.stream_embeddings(source, kind)
    for row, result in enumerate(tracked(vectors, "extracting features", len(source), progress)):
        if result.vector is not None:
            features[row] = result.vector
        elif result.error == NOT_A_NUMBER:  # a problem with the model, not with the image
            features[row] = torch.nan
        else:
            labels[row] = -1
            problems.append(f"{one_line(result.name)}: {result.error}")
    broken = sum(int((~features[rows].isfinite().all(dim=1)).sum()) for rows in slices(len(features), 4096))
    if broken:
        hint = ", or exceed the range of float16; try --precision fp32" if stored == torch.float16 else ""
        raise ValueError(f"the features of {broken} of {len(features)} images are infinite or NaN{hint}")
    return FeatureRows(features, labels, problems)


class Accuracy(NamedTuple):
    """Top-1 and top-5 accuracy, as fractions."""

    top1: float
    top5: float


def count_hits(
    scores: Float[Tensor, "n classes"], labels: Int[Tensor, "n"], ranks: tuple[int, int] = (1, 5)
) -> Int[Tensor, "2"]:
    """Count the images whose true class is among the top k scores, for each k in `ranks`.

    Ties are broken in favour of the lower class index. Rows with NaN or an infinite score for the true class are not
    counted.
    """
    own = scores.gather(1, labels[:, None])
    earlier = torch.arange(scores.shape[1], device=scores.device) < labels[:, None]
    rank = ((scores > own) | ((scores == own) & earlier)).sum(dim=1)
    valid = own[:, 0].isfinite() & ~scores.isnan().any(dim=1)
    return torch.stack([(valid & (rank < best)).sum() for best in ranks])


def rows_within_budget(width: int) -> int:
    """Return the number of rows of this width that fit in BUDGET bytes, in float64 and with temporary copies."""
    return max(1, BUDGET // (4 * 8 * width))


def slices(count: int, rows: int) -> Iterator[slice]:
    """Yield consecutive slices of at most `rows` rows that together cover `count` rows."""
    return (slice(start, min(start + rows, count)) for start in range(0, count, rows))


# ---- Cache -----------------------------------------------------------------------------------------------------------


def cached_features(
    folder: Path | None,
    predictor: Embedder,
    source: Source,
    kind: FeatureKind = "pooled",
    progress: Report = silent,
) -> tuple[FeatureSet, bool]:
    """Read features from a cache folder, or compute and store them. Also return True if they were cached."""
    file = None
    if folder is not None:
        if folder.is_file():
            fail("cache", folder, "a folder, not a file")
        folder.mkdir(parents=True, exist_ok=True)  # fail before the features are computed
        how = {
            "kind": kind,
            "flip": predictor.flip,
            "precision": predictor.number_format,
            "merge_tokens": predictor.merge_tokens,
        }
        file = folder / f"features-{digest(predictor.model, source, **how)}.safetensors"
        if (found := read_features(file)) is not None:
            return found, True
    features = extract(predictor, source, kind, progress)
    if file is not None:
        write_features(features, file)
    return features, False


def write_features(features: FeatureSet, file: Path) -> None:
    tensors = {"features": features.features, "labels": features.labels}
    with atomic_file(file, needed=sum(tensor.nbytes for tensor in tensors.values())) as temporary:
        write_tensors(tensors, temporary, {"problems": json.dumps(features.problems)})


def read_features(file: Path) -> FeatureSet | None:
    """Memory-map the features in a file. Return None if the file is missing or damaged."""
    try:
        with safe_open(file, framework="pt") as opened:
            problems = json.loads((opened.metadata() or {})["problems"])
            features, labels = opened.get_tensor("features"), opened.get_tensor("labels")
    except (SafetensorError, OSError, KeyError, ValueError):
        return None
    if features.ndim != 2 or labels.shape != features.shape[:1]:
        return None
    return FeatureSet(features, labels, tuple(problems))


def digest(model: Model, source: Source, **how: object) -> str:
    """Hash everything that the features depend on. Return 32 hexadecimal digits."""
    scales = int8_scales(model).tensors() if how.get("precision") == "int8" else {}
    weights = weights_digest(model.config, {**model.state_dict(), **scales})
    total = hashlib.sha256(json.dumps([vitreous.__version__, weights, how], sort_keys=True).encode())
    for stamp in _stamps(source):
        total.update(len(stamp).to_bytes(8, "little") + stamp)
    return total.hexdigest()[:32]


def _stamps(source: Source) -> Iterator[bytes]:
    yield repr(source.classes).encode()
    yield source.labels.tobytes()
    for index in range(len(source)):
        yield os.fsencode(source.name(index))
        yield _stamp(source, index)


def _stamp(source: Source, index: int) -> bytes:
    """Return bytes that identify an image: size and modification time of its file or, without a file, its content."""
    if isinstance(source, Subset):
        return _stamp(source.source, int(source.indices[index]))
    if isinstance(source, FileSource):
        return _file_stamp(source.root / source.paths[index])
    if isinstance(source, SpanSource):
        return _file_stamp(Path(source.files[source.spans[index, 0]])) + source.spans[index, 1:].tobytes()
    image = source.image(index)
    return image if isinstance(image, bytes) else repr(image.shape).encode() + image.tobytes()


def _file_stamp(path: Path) -> bytes:
    try:
        status = os.stat(path)
    except OSError:  # reported as unreadable later
        return b"missing"
    return f"{status.st_size} {status.st_mtime_ns}".encode()
