"""Figures told: as JSON to a program and to a file, or else by whatever a person is shown."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from vitreous.common.atomic_files import atomic_file
from vitreous.common.terminal import console
from vitreous.common.text import printable


def tell(record: Mapping[str, Any], as_json: bool, out: Path | None) -> Console | None:
    """Write the record to `out` and, if asked, print it; otherwise the console to go on with, for people.

    On it, names of classes are no markup. What speaks against the figures (`doubt`) is said in any case.
    """
    if record.get("doubt"):
        print(printable(f"vitreous: {record['doubt']}"), file=sys.stderr)
    if out is not None:
        with atomic_file(out) as aside:
            aside.write_text(json.dumps(record, indent=2))
    if as_json:
        print(json.dumps(record))
        return None
    return console()


def summary_table(record: Mapping[str, Any], names: tuple[str, ...]) -> Table:
    """Some figures, one below the other."""
    table = Table("", "", box=None, show_header=False)
    for name in names:
        value = record[name]
        table.add_row(name, f"{value:.4f}" if isinstance(value, float) else str(value))
    return table
