"""Check a data set: read and decode every image once, and report everything that is wrong or odd.

Unlike opening a data set for training, a check does not stop at the first problem.
"""

import hashlib
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from vitreous.common.checks import Size, fail
from vitreous.data.doctor.contact_sheet import check_name, write_sheet
from vitreous.data.doctor.report import DataReport, MaskCoverage, MaskReport, Sample, UnreadableSample, unlearnable
from vitreous.data.image.decoding import UnreadableImage, decode, open_image, orientation_of, size_of
from vitreous.data.masks.files import map_in_threads
from vitreous.data.masks.folders import open_mask_folder
from vitreous.data.open import find_data, make_splits
from vitreous.data.sources.base import FoundData, Source, StoredImage, class_counts, label_problems
from vitreous.data.sources.folders import has_masks, local_path
from vitreous.model.options import IGNORED

SMALL = 32  # pixels of the shorter side
EXTREME = 4  # ratio of the longer to the shorter side

# Odd properties of an image, in the order of the report.
ODDITIES = (
    "grey",
    "CMYK",
    "more than 8 bits",
    "palette",
    "alpha",
    "animated",
    f"smaller than {SMALL} pixels",
    f"more than {EXTREME} times as long as wide",
    "turned by EXIF",
)


def check_data(spec: str, root: Path | None = None, contact_sheet: Path | None = None) -> DataReport:
    """Check every image, and every mask, of a data set; raises only if there is nothing to check.

    `spec` and `root` are as in `open_data`. `contact_sheet` is the PNG file to draw some images of every class to.
    """
    path = local_path(spec, root)
    if has_masks(path):
        if contact_sheet is not None:
            fail("out", contact_sheet, "omitted for images with masks: the contact sheet shows classes of images")
        return _check_masked(path)
    if contact_sheet is not None:
        check_name(contact_sheet)
    found = find_data(spec, root)
    splits, note = _divide(found)
    report = _examine(found, splits, note)
    if contact_sheet is not None:
        report = replace(report, contact_sheet=str(write_sheet(splits, contact_sheet)))
    return report


def _check_masked(path: Path) -> DataReport:
    try:
        found = open_mask_folder(path)
    except ValueError as error:
        name = path.resolve().name
        return DataReport(name, masks=MaskReport([line.removeprefix(f"{name}: ") for line in str(error).splitlines()]))
    splits, note = _divide(found)
    classes = next(iter(splits.values())).mask_classes
    coverage = {split: _coverage(source) for split, source in splits.items()}
    masks = MaskReport(unlearnable(classes, coverage), classes, coverage)
    return replace(_examine(found, splits, note), masks=masks)


def _divide(found: FoundData) -> tuple[dict[str, Source], str]:
    """The splits as for training, or as found if that fails; and a note on their origin."""
    try:
        data = make_splits(found, val_fraction=0.2, seed=0)
    except ValueError as error:
        if not found.problems and not label_problems(found):  # then dividing it failed
            found.problems.append(str(error).removeprefix(f"{found.name}: "))
        return found.splits, "; ".join(found.notes)
    splits = {"train": data.train, "val": data.val} | ({"test": data.test} if data.test is not None else {})
    return splits, data.note


def _examine(found: FoundData, splits: dict[str, Source], note: str) -> DataReport:
    """Check every image of the splits."""
    keys = [(split, index) for split, source in splits.items() for index in range(len(source))]

    def check(key: tuple[str, int]) -> ImageCheck:
        split, index = key
        try:
            return check_image(splits[split].image(index))
        except OSError as error:
            return ImageCheck(error=error.strerror or str(error))

    checks = map_in_threads(check, keys, "checking images")
    odd: dict[str, list[Sample]] = defaultdict(list)
    copies: dict[bytes, list[Sample]] = defaultdict(list)
    unreadable, sizes = [], []
    for (split, index), checked in zip(keys, checks, strict=True):
        source = splits[split]
        label = source.classes[source.labels[index]] if found.labelled else ""
        sample = Sample(split, label, source.name(index))
        if checked.size is None:  # one problem, even if another file is the same
            unreadable.append(UnreadableSample(split, label, sample.name, checked.error))
            continue
        sizes.append(checked.size)
        copies[checked.digest].append(sample)
        for kind in checked.odd:
            odd[kind].append(sample)
    sizes.sort(key=lambda size: size[0] * size[1])
    groups = [group for group in copies.values() if len(group) > 1]
    leaks = [group for group in groups if len({sample.split for sample in group}) > 1]
    conflicts = [group for group in groups if len({sample.label for sample in group}) > 1]
    return DataReport(
        name=found.name,
        note=note,
        counts={split: class_counts(source) for split, source in splits.items()},
        label_problems=found.problems + label_problems(found),
        unreadable=unreadable,
        leaks=leaks,
        conflicts=conflicts,
        duplicates=[group for group in groups if len({(sample.split, sample.label) for sample in group}) == 1],
        odd=dict(odd),
        sizes={"smallest": sizes[0], "median": sizes[len(sizes) // 2], "largest": sizes[-1]} if sizes else {},
        damaged=found.damaged,
    )


# ---- One image -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ImageCheck:
    """The size and oddities of an image, or the reason why it cannot be read."""

    digest: bytes = b""  # of the stored bytes: equal for copies of a file
    size: Size | None = None
    odd: tuple[str, ...] = ()
    error: str = ""


def check_image(image: StoredImage) -> ImageCheck:
    """Decode the image, as training will."""
    stored = image if isinstance(image, bytes) else repr(image.shape).encode() + image.tobytes()
    digest = hashlib.blake2b(stored, digest_size=16).digest()
    try:
        height, width = size_of(image)
        decode(image, at_least=(SMALL, SMALL))
        odd = _array_oddities(image) if isinstance(image, np.ndarray) else _file_oddities(image)
    except UnreadableImage as error:
        return ImageCheck(digest, error=str(error))
    if min(height, width) < SMALL:
        odd.add(f"smaller than {SMALL} pixels")
    if max(height, width) > EXTREME * min(height, width):
        odd.add(f"more than {EXTREME} times as long as wide")
    return ImageCheck(digest, (height, width), tuple(name for name in ODDITIES if name in odd))


def _array_oddities(pixels: np.ndarray) -> set[str]:
    channels = pixels.shape[2] if pixels.ndim == 3 else 1
    return {"grey"} if channels == 1 else {"alpha"} if channels == 4 else set()


def _file_oddities(data: bytes) -> set[str]:
    """Oddities by the header."""
    image = open_image(data)
    deep = image.mode == "F" or image.mode.startswith("I")
    # A phone's MPO file has several frames too, but they are one image and its preview.
    animated = image.format != "MPO" and bool(getattr(image, "is_animated", False))
    present = {
        "grey": deep or image.mode in ("1", "L", "LA", "La"),
        "CMYK": image.mode == "CMYK",
        "more than 8 bits": deep,
        "palette": image.mode in ("P", "PA"),
        "alpha": image.has_transparency_data,
        "animated": animated,
        "turned by EXIF": orientation_of(image, data) != 1,
    }
    return {name for name, true in present.items() if true}


# ---- Masks -----------------------------------------------------------------------------------------------------------


def _coverage(source: Source) -> MaskCoverage:
    """Count the pixels of every class in the masks of a split."""
    k = len(source.mask_classes)

    def count(index: int) -> np.ndarray:
        return np.bincount(source.mask(index).ravel(), minlength=IGNORED + 1)

    images, pixels = np.zeros(k, np.int64), np.zeros(IGNORED + 1, np.int64)
    for counts in map_in_threads(count, range(len(source)), "counting pixels"):
        images += counts[:k] > 0
        pixels += counts
    labelled = max(int(pixels[:k].sum()), 1)
    ignored = float(pixels[IGNORED] / max(pixels.sum(), 1))
    return MaskCoverage(images.tolist(), (pixels[:k] / labelled).tolist(), ignored)
