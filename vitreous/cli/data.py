"""The verb `vitreous data`."""

import sys
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg


def data(
    action: Positional[Literal["check"]],
    spec: Annotated[Positional[str], arg(metavar="DIR|NAME")],
    *,
    data_root: Path | None = None,
    out: Path | None = None,
    json: bool = False,
) -> None:
    """A data set's doctor: counts, balance, unreadable and duplicate pictures, leaks between parts, odd sizes, masks.

    It exits with 1 where something should be mended before training.

    Example: vitreous data check pictures/ --out sheet.png

    Args:
        action: What to do; check is all there is.
        spec: Anything that `train --data` takes.
        data_root: A local copy of a data set that would be downloaded.
        out: Write a contact sheet, some pictures of every class, to this PNG.
        json: Print JSON instead of a report.
    """
    from vitreous.data.doctor.check import run_check

    if run_check(spec, data_root, out, json):
        sys.exit(1)
