"""Reader for .npz files with arrays of images and labels, such as `x_train`, `y_train`, `x_test` and `y_test`.

Images are uint8 [n, h, w] or [n, h, w, c]; `classes` may contain class names. Pickled objects are never loaded.
"""

import re
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from vitreous.common.text import listed
from vitreous.common.untrusted_files import check_regular
from vitreous.data.sources.base import UNSPLIT, ArraySource, FoundData, Source, order_labels, split_name

IMAGES = ("x", "image", "images", "data", "pictures")
LABELS = ("y", "label", "labels", "target", "targets")
CLASSES = ("classes", "class_names", "label_names", "names")


def open_arrays(path: Path, classes: tuple[str, ...] | None = None) -> FoundData:
    """Open an .npz file; `classes` is used if the file contains no class names."""
    arrays = read_npz(path)
    named = next((tuple(map(str, arrays[key].tolist())) for key in CLASSES if key in arrays), classes)
    images, labels = _by_split(path, arrays, IMAGES), _by_split(path, arrays, LABELS)
    if not images or images.keys() != labels.keys():
        raise ValueError(
            f"{path}: expected an array of images ({', '.join(IMAGES)}) and one of labels ({', '.join(LABELS)}) per "
            f"split, e.g. x_train and y_train; got {listed(arrays, 20)}"
        )
    return from_arrays(path.name, {split: (images[split], labels[split]) for split in images}, named)


def from_arrays(
    name: str, splits: Mapping[str, tuple[np.ndarray, np.ndarray]], classes: tuple[str, ...] | None
) -> FoundData:
    """Build a data set from the (images, labels) arrays of each split."""
    checked = {split: _check(f"{name}: {split}", images, labels) for split, (images, labels) in splits.items()}
    texts = [label for _, labels in checked.values() for label in np.unique(labels).tolist()]
    if classes is None:
        classes = order_labels(map(str, texts))
        position = {label: i for i, label in enumerate(classes)}
    else:
        position = {str(i): i for i in range(len(classes))}
        if unknown := sorted({str(label) for label in texts} - position.keys()):
            raise ValueError(f"{name}: labels must be from 0 to {len(classes) - 1}, got {listed(unknown)}")
    sources: dict[str, Source] = {}
    for split, (images, labels) in checked.items():
        values, inverse = np.unique(labels, return_inverse=True)
        numbers = np.array([position[str(value)] for value in values.tolist()], np.int64)[inverse]
        label = name.removesuffix(".npz") + ("" if split == UNSPLIT else f"/{split}")
        sources[split] = ArraySource(images, numbers, classes, label)
    return FoundData(name, sources)


def read_npz(path: Path) -> dict[str, np.ndarray]:
    try:
        check_regular(path)
        with np.load(path, allow_pickle=False) as file:
            return {key: file[key] for key in file.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} cannot be read as arrays: {str(error).splitlines()[0]}") from None


def _by_split(path: Path, arrays: Mapping[str, np.ndarray], names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Find the arrays for images or labels by split. A key consists of one of `names` and, optionally, a split name."""
    found: dict[str, np.ndarray] = {}
    for key, array in arrays.items():
        words = [word for word in re.split(r"[^a-z]+", key.lower()) if word]
        splits = [split for word in words if (split := split_name(word))]
        if not any(word in names for word in words) or len(words) != len(splits) + 1:
            continue
        split = splits[0] if splits else UNSPLIT
        if split in found:
            raise ValueError(f"{path}: array {key!r} duplicates another array of split {split!r}; keep one")
        found[split] = array
    return found


def _check(where: str, images: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if images.ndim == 3:
        images = images[..., None]
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] not in (1, 3, 4):
        raise ValueError(
            f"{where}: images must be uint8 [n, h, w] or [n, h, w, c] with 1, 3 or 4 channels, "
            f"got {images.dtype} {list(images.shape)}"
        )
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or labels.dtype.kind not in "iuU" or len(labels) != len(images):
        raise ValueError(
            f"{where}: labels must be integers or strings of shape [{len(images)}], "
            f"got {labels.dtype} {list(labels.shape)}"
        )
    if not len(labels):
        raise ValueError(f"{where} is empty")
    return images, labels
