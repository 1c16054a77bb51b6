"""Data set check: decodes every image once and reports problems and unusual images.

Unlike `open_data`, the check does not stop at the first problem.
"""

import hashlib
import io
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table

from vitreous.common.checks import Size, fail
from vitreous.common.text import SafeConsole, first_few, one_line, plural
from vitreous.common.threads import map_in_threads
from vitreous.data.doctor.contact_sheet import check_name, write_sheet
from vitreous.data.doctor.findings import SHOWN, ModelFindings, Sample
from vitreous.data.image.decoding import (
    UnreadableImage,
    brightest_value,
    decode,
    open_image,
    orientation_of,
    range_for,
    size_of,
)
from vitreous.data.masks.folders import open_mask_folder
from vitreous.data.masks.layouts import has_masks
from vitreous.data.open import find_data, find_targets, make_splits
from vitreous.data.sources.base import FoundData, Source, StoredImage, class_counts, label_problems
from vitreous.data.sources.folders import local_path
from vitreous.data.sources.targets import TargetKind
from vitreous.model.options import IGNORED

SMALL = 32  # minimum shorter side in pixels
EXTREME = 4  # maximum ratio of the longer to the shorter side
IMBALANCE = 10  # maximum ratio of the largest to the smallest class

# Unusual properties of an image, in the order of the report; also keys of the JSON output.
ODDITIES = (
    "grey",
    "CMYK",
    "more than 8 bits",
    "palette",
    "alpha",
    "animated",
    "several pages",
    f"smaller than {SMALL} pixels",
    f"more than {EXTREME} times as long as wide",
    "turned by EXIF",
)


# ---- The report ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class UnreadableSample(Sample):
    """An image that cannot be read."""

    reason: str


@dataclass(frozen=True)
class MaskCoverage:
    """Pixel statistics of the masks of one split."""

    images: list[int]  # per class: number of images that contain it
    fractions: list[float]  # per class: fraction of the labelled pixels
    ignored: float  # fraction of all pixels


@dataclass(frozen=True)
class MaskReport:
    """Mask problems, and class coverage per split; coverage is empty if the masks cannot be used."""

    problems: list[str]
    classes: tuple[str, ...] = ()
    coverage: dict[str, MaskCoverage] = field(default_factory=dict)


@dataclass(frozen=True)
class DataReport:
    """Result of `vitreous data check`. `problems` counts the issues to fix before training."""

    name: str
    note: str = ""
    counts: dict[str, dict[str, int]] = field(default_factory=dict)  # images by split and class
    images: dict[str, int] = field(default_factory=dict)  # images by split
    label_problems: list[str] = field(default_factory=list)
    unreadable: list[UnreadableSample] = field(default_factory=list)
    leaks: list[list[Sample]] = field(default_factory=list)  # identical images in different splits
    conflicts: list[list[Sample]] = field(default_factory=list)  # identical images with different labels
    duplicates: list[list[Sample]] = field(default_factory=list)  # identical images, same split and label
    odd: dict[str, list[Sample]] = field(default_factory=dict)
    sizes: dict[str, Size] = field(default_factory=dict)  # smallest, median and largest by area
    brightest: int | None = None  # highest value of all 16-bit images
    damaged: list[str] = field(default_factory=list)  # e.g. truncated shards
    masks: MaskReport | None = None
    contact_sheet: str | None = None
    suspicions: ModelFindings | None = None  # found with a model, if given

    @property
    def problems(self) -> int:
        """Number of problems; a leak that is also a label conflict counts once."""
        masks = len(self.masks.problems) if self.masks is not None else 0
        near = len(self.suspicions.near_leaks) if self.suspicions is not None else 0
        return len(self.label_problems) + len(self.unreadable) + len(self._copies()) + len(self.damaged) + masks + near

    @property
    def balance(self) -> tuple[str, int, str, int] | None:
        """Name and image count of the largest and of the smallest class in the first split, or None without classes."""
        counts = next(iter(self.counts.values()), {})
        if not counts:
            return None
        large, small = max(counts, key=lambda name: counts[name]), min(counts, key=lambda name: counts[name])
        return large, counts[large], small, counts[small]

    @property
    def value_range(self) -> tuple[int, int] | None:
        """Value range of the 16-bit images if they use at most 14 bits, otherwise None."""
        return None if self.brightest is None else range_for(self.brightest)

    def _copies(self) -> list[tuple[str, list[Sample]]]:
        """Return the groups of identical images that count as problems. Each group is listed once and has a title."""
        leaks = [
            ("leak" if len({s.label for s in group}) == 1 else "leak, label conflict", group) for group in self.leaks
        ]
        in_one_split = [group for group in self.conflicts if len({sample.split for sample in group}) == 1]
        return leaks + [("label conflict", group) for group in in_one_split]

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON types."""
        result = asdict(self) | {"problems": self.problems}
        if (masks := result.pop("masks")) is not None:
            result |= {"mask_problems": masks["problems"], "classes": masks["classes"], "cover": masks["coverage"]}
        return result

    def __str__(self) -> str:
        console = SafeConsole(file=io.StringIO(), width=120, no_color=True)
        console.print(self)
        text: str = console.file.getvalue()  # type: ignore[attr-defined]
        return text.rstrip()

    def __rich_console__(self, console: Console, options: object) -> Iterator[RenderableType]:
        yield f"[bold]{escape(self.name)}[/bold]" + (f": {escape(self.note)}" if self.note else "")
        if self.masks is None and self.counts:
            yield self._class_table()
        elif self.masks is not None and self.masks.coverage:
            yield _mask_table(self.masks)
        yield from self._remarks()
        for problem in self.label_problems:
            yield _problem("labels", problem)
        yield from _shortened([_problem("damaged", line) for line in self.damaged])
        unreadable = [f"{self._shown(sample)}: {sample.reason}" for sample in self.unreadable]
        yield from _shortened([_problem("unreadable", line) for line in unreadable])
        yield from _shortened([_problem(title, " = ".join(map(self._shown, group))) for title, group in self._copies()])
        for problem in self.masks.problems if self.masks is not None else []:
            yield _problem("masks", problem)
        if self.suspicions is not None:
            near = [
                (f"leak, near duplicate ({group.correlation:.2f})", " = ".join(map(self._shown, group.samples)))
                for group in self.suspicions.near_leaks
            ]
            yield from _shortened([_problem(title, text) for title, text in near])
            yield from self.suspicions.lines()
        if self.contact_sheet is not None:
            yield f"contact sheet: {escape(self.contact_sheet)}"
        if self.problems:
            yield f"[bold red]{plural(self.problems, 'problem')} found[/bold red]"
        else:
            yield "[bold green]no problems found[/bold green]"

    def _shown(self, sample: Sample) -> str:
        """Return the name of an image, followed by its label and split unless they are part of the name."""
        about = [sample.label, sample.split] if len(self.images) > 1 else [sample.label]
        about = [one_line(word) for word in about if word and word not in sample.name.split("/")]
        return one_line(sample.name) + (f" ({', '.join(about)})" if about else "")

    def _class_table(self) -> Table:
        """Return a table of image counts per class and split. Omit medium-sized classes if there are many classes."""
        splits = list(self.counts)
        table = Table("class", *splits, box=None)
        for column in table.columns[1:]:
            column.justify = "right"
        classes = list(dict.fromkeys(name for counts in self.counts.values() for name in counts))
        shown = classes
        if len(classes) > 2 * SHOWN:
            first = self.counts[splits[0]]
            ordered = sorted(classes, key=lambda name: -first.get(name, 0))
            shown = [*ordered[: SHOWN // 2], "...", *ordered[-SHOWN // 2 :]]
        for name in shown:
            cells = ["" if name == "..." else f"{self.counts[split].get(name, 0):,}" for split in splits]
            table.add_row(escape(one_line(name)), *cells)
        totals = [f"{self.images[split]:,}" for split in splits]
        table.add_row(f"[bold]{len(classes):,} classes[/bold]", *totals)
        return table

    def _remarks(self) -> Iterator[str]:
        """Yield remarks that do not count as problems."""
        if self.balance is not None:
            large, most, small, least = self.balance
            if most > IMBALANCE * max(least, 1):
                yield escape(f"imbalance: {large!r} has {most:,} images, {small!r} has {least:,}")
        if self.sizes:
            sizes = ", ".join(f"{name} {height} x {width}" for name, (height, width) in self.sizes.items())
            yield f"image sizes (height x width): {sizes}"
        if (used := self.value_range) is not None:
            flag = f"by default, train uses --value-range {used[0]} {used[1]} to prevent this"
            yield f"16-bit images have no values above {self.brightest:,}, so they would be nearly black; {flag}"
        for kind, samples in self.odd.items():
            yield escape(f"{kind}: {plural(len(samples), 'image')}, e.g. {self._shown(samples[0])}")
        if self.duplicates:
            extra = sum(len(group) - 1 for group in self.duplicates)
            first = " = ".join(map(self._shown, self.duplicates[0]))
            yield escape(f"duplicates within a split: {plural(extra, 'image')}, e.g. {first}")


def _unlearnable(classes: tuple[str, ...], coverage: dict[str, MaskCoverage]) -> list[str]:
    """For each split, describe the classes that occur in its masks but not in the train masks."""
    problems = []
    train = coverage.get("train")
    for split, masks in coverage.items():
        missing = [i for i, n in enumerate(masks.images) if n and train is not None and not train.images[i]]
        if missing:
            shown = first_few([f"{classes[i]!r} ({masks.fractions[i]:.1%} of {split} pixels)" for i in missing])
            problems.append(f"no train mask contains {shown}; add examples to train or use --ignore")
    return problems


def _mask_table(masks: MaskReport) -> Table:
    table = Table("class", box=None)
    for name in masks.coverage:
        table.add_column(f"{name} images", justify="right")
        table.add_column(f"{name} pixels", justify="right")
    for index, name in enumerate(masks.classes):
        cells = [(f"{split.images[index]:,}", f"{split.fractions[index]:.1%}") for split in masks.coverage.values()]
        table.add_row(escape(name), *chain(*cells))
    table.add_row("ignored", *chain(*(("", f"{split.ignored:.1%}") for split in masks.coverage.values())))
    return table


def _problem(title: str, text: str) -> str:
    return f"[red]{title}[/red]: {escape(text)}"


def _shortened(lines: Sequence[str]) -> Iterator[str]:
    yield from lines[:SHOWN]
    if len(lines) > SHOWN:
        yield f"  ... and {len(lines) - SHOWN:,} more"


# ---- The check -------------------------------------------------------------------------------------------------------


def check_data(
    spec: str, root: Path | None = None, contact_sheet: Path | None = None, targets: TargetKind | None = None
) -> DataReport:
    """Check every image and mask of a data set. Raise ValueError only if the data set cannot be opened.

    `spec`, `root` and `targets` are as in `open_data`. `contact_sheet` is an optional path for a PNG of sample images.
    """
    path = local_path(spec, root)
    if contact_sheet is not None:
        if has_masks(path) or targets is not None:
            kinds = "segmentation data, several labels and numbers"
            fail("out", contact_sheet, f"omitted for {kinds}, because a contact sheet needs one label per image")
        check_name(contact_sheet)
    try:
        found, splits, note = open_splits(spec, root, targets)
    except ValueError as error:
        if not has_masks(path) or targets is not None:
            raise
        name = path.resolve().name
        return DataReport(name, masks=MaskReport([line.removeprefix(f"{name}: ") for line in str(error).splitlines()]))
    report = _examine(found, splits, note)
    if has_masks(path):
        return replace(report, masks=_check_masks(splits))
    if contact_sheet is not None:
        report = replace(report, contact_sheet=str(write_sheet(splits, contact_sheet, report.value_range)))
    return report


def open_splits(
    spec: str, root: Path | None = None, targets: TargetKind | None = None
) -> tuple[FoundData, dict[str, Source], str]:
    """Open and split a data set, including its masks if it has any. Also return a note on the splits."""
    if targets is not None:
        found = find_targets(spec, root, targets)
        return found, *_divide(found)
    path = local_path(spec, root)
    found = open_mask_folder(path) if has_masks(path) else find_data(spec, root)
    return found, *_divide(found)


def _check_masks(splits: dict[str, Source]) -> MaskReport:
    classes = next(iter(splits.values())).mask_classes
    coverage = {split: _coverage(source) for split, source in splits.items()}
    return MaskReport(_unlearnable(classes, coverage), classes, coverage)


def _divide(found: FoundData) -> tuple[dict[str, Source], str]:
    """Split the data as in training. If this fails, keep the existing splits. Also return a note on the splits."""
    try:
        data = make_splits(found, val_fraction=0.2, seed=0)
    except ValueError as error:
        if not found.problems and not label_problems(found):  # splitting failed for another reason
            found.problems.append(str(error).removeprefix(f"{found.name}: "))
        return found.splits, "; ".join(found.notes)
    splits = {"train": data.train, "val": data.val} | ({"test": data.test} if data.test is not None else {})
    return splits, data.note


def _examine(found: FoundData, splits: dict[str, Source], note: str) -> DataReport:
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
    unreadable, sizes, brightest = [], [], []
    for (split, index), checked in zip(keys, checks, strict=True):
        source = splits[split]
        label = source.label(index) if found.labelled else ""
        sample = Sample(split, label, source.name(index))
        if checked.size is None:  # count copies of a broken file as unreadable, not as leaks
            unreadable.append(UnreadableSample(split, label, sample.name, checked.error))
            continue
        sizes.append(checked.size)
        brightest += [] if checked.brightest is None else [checked.brightest]
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
        counts={split: class_counts(source) for split, source in splits.items() if _has_classes(source)},
        images={split: len(source) for split, source in splits.items()},
        label_problems=found.problems + label_problems(found),
        unreadable=unreadable,
        leaks=leaks,
        conflicts=conflicts,
        duplicates=[group for group in groups if len({(sample.split, sample.label) for sample in group}) == 1],
        odd=dict(odd),
        sizes={"smallest": sizes[0], "median": sizes[len(sizes) // 2], "largest": sizes[-1]} if sizes else {},
        brightest=max(brightest, default=None),
        damaged=found.damaged,
    )


def _has_classes(source: Source) -> bool:
    return source.targets is None or source.targets.dtype == bool  # not numbers


# ---- One image -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ImageCheck:
    """Size and unusual properties of an image, or the reason why it cannot be read."""

    digest: bytes = b""  # hash of the stored bytes, to find copies
    size: Size | None = None
    odd: tuple[str, ...] = ()
    error: str = ""
    brightest: int | None = None  # highest value of a 16-bit image


def check_image(image: StoredImage) -> ImageCheck:
    """Decode an image and collect its unusual properties."""
    stored = image if isinstance(image, bytes) else repr(image.shape).encode() + image.tobytes()
    digest = hashlib.blake2b(stored, digest_size=16).digest()
    try:
        height, width = size_of(image)
        decode(image, at_least=(SMALL, SMALL))
        odd, brightest = _oddities(image), brightest_value(image)
    except UnreadableImage as error:
        return ImageCheck(digest, error=str(error))
    if min(height, width) < SMALL:
        odd.add(f"smaller than {SMALL} pixels")
    if max(height, width) > EXTREME * min(height, width):
        odd.add(f"more than {EXTREME} times as long as wide")
    return ImageCheck(digest, (height, width), tuple(name for name in ODDITIES if name in odd), brightest=brightest)


def _oddities(stored: StoredImage) -> set[str]:
    """Return the unusual properties found in the file header or, for an array, in its shape."""
    if isinstance(stored, np.ndarray):
        channels = stored.shape[2] if stored.ndim == 3 else 1
        return {"grey"} if channels == 1 else {"alpha"} if channels == 4 else set()
    image = open_image(stored)
    deep = image.mode == "F" or image.mode.startswith("I")
    # A phone's MPO file also has several frames, but they are an image and its preview.
    several = image.format != "MPO" and bool(getattr(image, "is_animated", False))
    present = {
        "grey": deep or image.mode in ("1", "L", "LA", "La"),
        "CMYK": image.mode == "CMYK",
        "more than 8 bits": deep,
        "palette": image.mode in ("P", "PA"),
        "alpha": image.has_transparency_data,
        "animated": several and image.format != "TIFF",
        "several pages": several and image.format == "TIFF",
        "turned by EXIF": orientation_of(image, stored) != 1,
    }
    return {name for name, true in present.items() if true}


# ---- Masks -----------------------------------------------------------------------------------------------------------


def _coverage(source: Source) -> MaskCoverage:
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
