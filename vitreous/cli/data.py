"""The `vitreous data` command."""

import sys
from json import dumps
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from vitreous.cli import ImageSize
from vitreous.common.text import console


def data(
    action: Positional[Literal["check"]],
    spec: Annotated[Positional[str], arg(metavar="DIR|NAME")],
    *,
    checkpoint: Annotated[Path | None, arg(metavar="CHECKPOINT")] = None,
    task: Literal["classify", "multilabel", "regress"] = "classify",
    target: tuple[str, ...] = (),
    image_size: ImageSize = (),
    data_root: Path | None = None,
    batch_size: int = 64,
    device: str = "auto",
    out: Path | None = None,
    json: bool = False,
) -> None:
    """Check a data set for unreadable or duplicate images, leaks between splits, imbalance, unusual sizes or bad masks.

    With --checkpoint, also find likely label errors, near duplicates and outliers. The exit status is 1 if there are
    problems to fix before training. Likely label errors and outliers do not affect the exit status.

    Example: vitreous data check images/ --checkpoint dinov2-s --out suspicious.html

    Args:
        action: Action to perform; only `check` is available.
        spec: The data set; accepts the same values as `train --data`.
        checkpoint: Frozen model for the search: a checkpoint, a catalog name such as dinov2-s, or hf-hub:owner/name.
            Use a model that was not trained on these labels.
        task: Content of a table: one class, several labels, or numbers per image. Masks are recognised.
        target: Columns of the table with the labels or numbers, as in `train --target`.
        image_size: Input size, by default that of the model but at most 224.
        data_root: Folder with a local copy of the data set, which is then not downloaded.
        batch_size: Images per batch.
        device: auto, cpu, cuda or mps.
        out: PNG file for a contact sheet with sample images of every class or, with --checkpoint, HTML file for a page
            that shows the findings.
        json: Print JSON instead of text.
    """
    from vitreous.evaluation.check_data import check_data

    report = check_data(
        spec,
        checkpoint,
        task=task,
        target=target,
        image_size=image_size,
        data_root=data_root,
        out=out,
        batch_size=batch_size,
        device=device,
    )
    if json:
        print(dumps(report.to_dict(), indent=2))
    else:
        console(markup=True, soft_wrap=True).print(report)
    if report.problems:
        sys.exit(1)
