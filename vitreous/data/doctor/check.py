"""A data set's doctor: every picture is read and decoded once, and what is wrong or odd is named.

Unlike opening a data set to train on it, a check does not stop at the first problem.
"""

import json
import os
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.progress import track

from vitreous.common.checks import fail
from vitreous.common.terminal import console as standard_output
from vitreous.common.text import SafeConsole
from vitreous.data.doctor.contact_sheet import check_name, write_sheet
from vitreous.data.doctor.findings import Entry, Report
from vitreous.data.doctor.image_report import Look, look_at
from vitreous.data.doctor.mask_report import MaskReport, cover_of
from vitreous.data.masks.folders import has_masks, open_mask_folder
from vitreous.data.open import find_data
from vitreous.data.sources.base import Source
from vitreous.data.split import Found, arrange, label_problems, occurring


def check(spec: str, root: Path | None = None) -> Report:
    """Look at every picture of a data set. Raises only if there is nothing to look at."""
    return examine(*_divide(find_data(spec, root)))


def run_check(spec: str, root: Path | None, out: Path | None, as_json: bool) -> int:
    """`vitreous data check`: print the report, write a contact sheet to `out`, return the number of problems."""
    path = Path(spec).expanduser()
    path = root / path if root is not None and (root / path).exists() else path
    if has_masks(path):
        if out is not None:
            fail("out", out, "left out for pictures with masks: the contact sheet is one of classes")
        return _run_mask_check(path, as_json)
    if out is not None:
        check_name(out)
    found, parts, note = _divide(find_data(spec, root))
    report = examine(found, parts, note)
    sheet = write_sheet(parts, out) if out is not None else None
    if as_json:
        print(json.dumps(report.to_dict() | {"contact_sheet": str(sheet) if sheet else None}, indent=2))
        return report.problems
    console = standard_output(markup=True, soft_wrap=True)
    console.print(report)
    if sheet is not None:
        console.print(f"contact sheet: {sheet}", markup=False)
    return report.problems


def check_masks(path: Path) -> MaskReport:
    """Look at every picture and every mask."""
    try:
        found = open_mask_folder(path)
    except ValueError as error:
        name = path.resolve().name
        return MaskReport(name, [line.removeprefix(f"{name}: ") for line in str(error).splitlines()])
    found, parts, note = _divide(found)
    classes = next(iter(parts.values())).mask_classes
    cover = {part: cover_of(source) for part, source in parts.items()}
    return MaskReport(found.name, [], classes, cover, examine(found, parts, note))


def _run_mask_check(path: Path, as_json: bool) -> int:
    report = check_masks(path)
    if as_json:
        print(json.dumps(report.to_dict(), indent=2))
    else:
        standard_output(markup=True, soft_wrap=True).print(report)
    return report.count


def _divide(found: Found) -> tuple[Found, dict[str, Source], str]:
    """The parts as they would be trained on, or as they lie there if that cannot be; and how they came about."""
    try:
        data = arrange(found, val_fraction=0.2, seed=0)
    except ValueError as error:
        if not found.problems and not label_problems(found):  # then dividing it failed
            found.problems.append(str(error).removeprefix(f"{found.name}: "))
        return found, found.parts, "; ".join(found.notes)
    parts = {"train": data.train, "val": data.val} | ({"test": data.test} if data.test is not None else {})
    return found, parts, data.note


def examine(found: Found, parts: dict[str, Source], note: str) -> Report:
    """The report on some parts. Decoding releases Python's lock, so threads are enough to use every core."""
    places = [(part, index) for part, source in parts.items() for index in range(len(source))]

    def look(place: tuple[str, int]) -> Look:
        part, index = place
        try:
            return look_at(parts[part].picture(index))
        except OSError as error:
            return Look(f"{place}".encode(), None, (), error.strerror or str(error))

    console = SafeConsole(stderr=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        some = (places[start : start + 4096] for start in range(0, len(places), 4096))  # a pool takes all it is given
        stream = (seen for chunk in some for seen in pool.map(look, chunk))
        looks = list(track(stream, "looking", len(places), console=console, disable=not console.is_terminal))
    entries = [_entry(parts[part], part, index) for part, index in places]
    odd: dict[str, list[Entry]] = defaultdict(list)
    twins: dict[bytes, list[Entry]] = defaultdict(list)
    for entry, seen in zip(entries, looks, strict=True):
        twins[seen.digest].append(entry)
        for kind in seen.odd:
            odd[kind].append(entry)
    groups = [group for group in twins.values() if len(group) > 1]
    leaks = [group for group in groups if len({entry.part for entry in group}) > 1]
    conflicts = [group for group in groups if len({entry.label for entry in group}) > 1]
    told = {id(group) for group in (*leaks, *conflicts)}
    sizes = sorted((seen.size for seen in looks if seen.size is not None), key=lambda size: size[0] * size[1])
    return Report(
        name=found.name,
        note=note,
        counts={part: occurring(source) for part, source in parts.items()},
        label_problems=found.problems + label_problems(found),
        unreadable=[(entry, seen.error) for entry, seen in zip(entries, looks, strict=True) if seen.error is not None],
        leaks=leaks,
        conflicts=conflicts,
        duplicates=[group for group in groups if id(group) not in told],
        odd=dict(odd),
        sizes=(sizes[0], sizes[len(sizes) // 2], sizes[-1]) if sizes else None,
        damaged=tuple(found.damaged),
    )


def _entry(source: Source, part: str, index: int) -> Entry:
    return Entry(part, source.classes[source.labels[index]], source.name(index))
