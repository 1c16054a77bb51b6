"""The `vitreous data` command."""

import sys
from json import dumps
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from vitreous.common.text import console


def data(
    action: Positional[Literal["check"]],
    spec: Annotated[Positional[str], arg(metavar="DIR|NAME")],
    *,
    data_root: Path | None = None,
    out: Path | None = None,
    json: bool = False,
) -> None:
    """Check a data set for unreadable or duplicate images, leaks between splits, imbalance, unusual sizes or bad masks.

    The exit status is 1 if there are problems to fix before training.

    Example: vitreous data check images/ --out sheet.png

    Args:
        action: Action to perform; only `check` is available.
        spec: The data set; accepts the same values as `train --data`.
        data_root: Folder with a local copy of the data set, used instead of downloading it.
        out: PNG file for a contact sheet with sample images of every class.
        json: Print JSON instead of text.
    """
    from vitreous.data.doctor import check_data

    report = check_data(spec, data_root, out)
    if json:
        print(dumps(report.to_dict(), indent=2))
    else:
        console(markup=True, soft_wrap=True).print(report)
    if report.problems:
        sys.exit(1)
