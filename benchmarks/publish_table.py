"""Output of all benchmarks: a table on the terminal and a JSON file."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table


def publish(
    setting: str, columns: Sequence[str], rows: Sequence[Sequence[str]], results: Sequence[Any], out: Path
) -> None:
    """Print `rows` as a table and write `results` (dataclasses) to `out` as JSON."""
    table = Table(*columns, title=setting, box=None)
    for row in rows:
        table.add_row(*row)
    Console().print(table)
    out.parent.mkdir(parents=True, exist_ok=True)
    record = {"setting": setting, "torch": torch.__version__, "results": [asdict(result) for result in results]}
    out.write_text(json.dumps(record, indent=2))
