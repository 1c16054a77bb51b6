"""Shows the record of `compare_systems`: tables for the terminal and for Markdown, and a plot."""

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.table import Table

from vitreous.common.atomic_files import atomic_file

Row = dict[str, Any]
TITLES = {"train": "training step", "inference": "inference", "latency": "latency of one image"}


def tables(record: dict[str, Any]) -> Iterator[Table]:
    """Yield a table for each model and workload, with the best setting of each system in bold."""
    for rows in _cases(record):
        images = f"batch {rows[0]['batch_size']}, " if rows[0]["workload"] != "latency" else ""
        size = " x ".join(map(str, rows[0]["image_size"]))
        title = f"{rows[0]['model']}, {TITLES[rows[0]['workload']]}, {images}{size} pixels, {rows[0]['precision']}"
        columns = ("system", "setting", "ms", "range", "images/s", "speed", "MFU", "GiB", "difference", "set-up, s")
        failed = "\n".join(f"{row['system']}, {row['setting']}: {row['error']}" for row in rows if row["error"])
        table = Table(*columns, title=title, title_justify="left", caption=failed, caption_justify="left", box=None)
        best = {id(row) for row in _best(rows)}
        for row in rows:
            table.add_row(*_cells(row), style="bold" if id(row) in best else None)
        yield table


def _cells(row: Row) -> list[str]:
    cells = [row["system"], row["setting"]]
    if row["seconds"] is None:
        return cells
    return [
        *cells,
        _number(row["seconds"] * 1e3),
        f"{_number(row['fastest'] * 1e3)} to {_number(row['slowest'] * 1e3)}",
        _number(row["images_per_second"]),
        "" if row["speed"] is None else f"{row['speed']:.2f}",
        "" if row["mfu"] is None else f"{row['mfu']:.0%}",
        "" if row["memory_bytes"] is None else f"{row['memory_bytes'] / 2**30:.2f}",
        f"{row['difference']:.1e}",
        f"{row['set_up_seconds']:.1f}",
    ]


def _number(value: float) -> str:
    """Format a number with about four digits.

    >>> _number(0.69123), _number(33.68), _number(11380.6)
    ('0.6912', '33.68', '11,381')
    """
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def markdown_table(records: Sequence[dict[str, Any]], headings: Sequence[str]) -> str:
    """Return a table with the speed of the best setting of each system, relative to the fastest other library.

    `headings` are those of the first columns: model, workload, precision and batch size.
    """
    cases = [rows for record in records for rows in _cases(record)]
    systems = list(dict.fromkeys(row["system"] for rows in cases for row in rows))
    lines = ["| " + " | ".join([*headings, *systems]) + " |", "|---" * (len(headings) + len(systems)) + "|"]
    for rows in cases:
        best = {row["system"]: f"{row['speed']:.2f} ({row['setting']})" for row in _best(rows) if row["speed"]}
        first = [rows[0]["model"], TITLES[rows[0]["workload"]], rows[0]["precision"], str(rows[0]["batch_size"])]
        lines.append("| " + " | ".join([*first, *(best.get(system, "-") for system in systems)]) + " |")
    return "\n".join(lines)


def write_json(record: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as temporary:
        temporary.write_text(json.dumps(record, indent=2) + "\n")


def draw(record: dict[str, Any], path: Path) -> None:
    """Draw the best setting of each system, in images per second, with the range over rounds."""
    from vitreous.report.plots import ACCENT, GREY, drawing, plain

    cases = [best for rows in _cases(record) if (best := _best(rows))]
    columns = min(len(cases), 3)
    lines = -(-len(cases) // columns)
    with drawing(path, 4.2 * columns, 0.6 + 0.3 * lines * max(map(len, cases)) + 0.5 * lines) as figure:
        grid = figure.subplots(lines, columns, squeeze=False).flat
        for axes, rows in zip(grid, cases, strict=False):
            rows = rows[::-1]  # the first one at the top
            speeds = [row["images_per_second"] for row in rows]
            spread = [
                [speed - row["batch_size"] / row["slowest"] for speed, row in zip(speeds, rows, strict=True)],
                [row["batch_size"] / row["fastest"] - speed for speed, row in zip(speeds, rows, strict=True)],
            ]
            colours = [ACCENT if row["system"].startswith("vitreous") else GREY for row in rows]
            names = [f"{row['system']}, {row['setting']}" for row in rows]
            axes.barh(names, speeds, xerr=spread, color=colours, height=0.7, error_kw={"elinewidth": 0.8})
            plain(axes, f"{rows[0]['model']}, {TITLES[rows[0]['workload']]}", x=f"images/s, {rows[0]['precision']}")
        for axes in list(grid):  # not used
            axes.set_axis_off()


def _cases(record: dict[str, Any]) -> Iterator[list[Row]]:
    """Yield the results of each model and workload."""
    for _, rows in groupby(record["results"], lambda row: (row["model"], row["workload"], row["precision"])):
        yield list(rows)


def _best(rows: Sequence[Row]) -> list[Row]:
    """Return the fastest setting of each system."""
    measured = [row for row in rows if row["seconds"] is not None]
    systems = dict.fromkeys(row["system"] for row in measured)

    def rank(row: Row) -> tuple[float, float]:
        return -(row["speed"] or 0), row["seconds"]

    return [min((row for row in measured if row["system"] == name), key=rank) for name in systems]
