"""`vitreous eval` of a segmenter: mean IoU, each class, and its outlines, at the pictures' real size."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from vitreous.data.masks.folders import open_masked
from vitreous.evaluation.print_metrics import summary_table, tell
from vitreous.evaluation.setting import Setting, pick_part
from vitreous.inference.segment_predictor import SegmentPredictor
from vitreous.model.segmenter import Segmenter
from vitreous.tasks.segment_loop import Segmented, segment_source

SHOWN = 20


def evaluate_segmenter(
    model: Segmenter, data: str, setting: Setting, ignore: Sequence[str] = ()
) -> tuple[dict[str, Any], Segmented]:
    """The figures of `metrics.json`, and everything that they are computed from."""
    found = open_masked(
        data,
        root=setting.root,
        val_fraction=setting.val_fraction,
        seed=setting.seed,
        ignore=tuple(ignore),
        order=model.config.labels,
    )
    name, source = pick_part(found, setting.part)
    check_classes(model.config.labels, model.config.num_classes, found.mask_classes, found.name)
    predictor = SegmentPredictor(
        model,
        setting.device,
        setting.precision,  # type: ignore[arg-type]
        setting.flip,
        batch_size=setting.batch_size,
        workers=setting.workers,
    )
    started = time.perf_counter()
    segmented = segment_source(predictor, source, found.mask_classes)
    seconds = time.perf_counter() - started
    figures = {**segmented.metrics(), "part": name, "seconds": seconds, "doubt": setting.doubt(model, found)}
    return {**figures, "images_per_second": len(source) / seconds}, segmented


def check_classes(known: Sequence[str], count: int, classes: Sequence[str], where: str) -> None:
    """Whether a segmenter and masks speak of the same classes."""
    if len(classes) == count and tuple(known) in ((), tuple(classes)):
        return
    ours, theirs = ", ".join(known) or f"{count} unnamed", ", ".join(classes)
    beside = [name for name in classes if name not in known]
    hint = f"; leave out with --ignore {' '.join(beside)}" if set(known) < set(classes) else ""
    hint = "; do not --ignore what it knows" if set(classes) < set(known) else hint
    raise ValueError(f"the checkpoint knows the classes {ours}, but the masks of {where} have {theirs}{hint}")


def print_segmentation(figures: dict[str, Any], segmented: Segmented, as_json: bool, out: Path | None) -> None:
    """For people or for programs; `out` gets the JSON as well."""
    rows = [vars(row) for row in segmented.evaluation.per_class()]
    record = {
        **figures,
        "per_class": rows,
        "confusion": segmented.evaluation.confusion().tolist(),
        "unreadable_files": segmented.problems,
    }
    if (console := tell(record, as_json, out)) is None:
        return
    shown = ("part", "count", "miou", "pixel_accuracy", "boundary_f", "unreadable", "images_per_second")
    console.print(summary_table(figures, shown))
    classes = Table("class", "pixels", "IoU", "accuracy", "boundary F", box=None)
    for row in sorted(rows, key=lambda row: (row["iou"] is None, row["iou"]))[:SHOWN]:
        shares = ("-" if row[key] is None else f"{row[key]:.3f}" for key in ("iou", "accuracy", "boundary_f"))
        classes.add_row(row["name"], f"{row['pixels']:,}", *shares)
    console.print(classes)
    for problem in segmented.problems[:SHOWN]:
        console.print(f"unreadable: {problem}", soft_wrap=True)
