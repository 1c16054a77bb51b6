"""metrics.jsonl, a line of JSON for every epoch: appended whole or not at all, and cut back when a run resumes."""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from vitreous.common.atomic_files import atomic_file
from vitreous.common.json_files import parse_json


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Append a line and sync it to the disk; what a full disk has torn is removed again."""
    with open(path, "ab", buffering=0) as file:
        size = file.tell()
        try:
            line = memoryview((json.dumps(row) + "\n").encode())
            while line:
                line = line[file.write(line) :]
            os.fsync(file.fileno())
        except OSError as error:
            with suppress(OSError):
                file.truncate(size)
            raise OSError(f"could not write {path}: {error.strerror or error}; its earlier lines are intact") from error


def read_rows(path: Path) -> list[dict[str, Any]]:
    """All rows. An unreadable last line, torn by a crash, is skipped; any other is an error that names its place."""
    rows: list[dict[str, Any]] = []
    lines = path.read_bytes().splitlines()
    for number, line in enumerate(lines, 1):
        where = f"{path}, line {number}"
        try:
            row = parse_json(line, where)
            if not isinstance(row, dict) or type(row.get("step")) is not int:
                raise ValueError(f"{where} has no step")
        except ValueError as error:
            if number == len(lines):
                break
            raise ValueError(f"{error}: delete that line to resume without it") from error
        rows.append(row)
    return rows


def drop_rows_after(path: Path, step: int) -> bool:
    """Drop rows of later steps, which will come again, and a torn last line; returns whether there was a torn one."""
    if not path.exists():
        return False
    content = path.read_bytes()
    rows = read_rows(path)
    kept = [line for row, line in zip(rows, content.splitlines(), strict=False) if row["step"] <= step]
    whole = b"".join(line + b"\n" for line in kept)
    if whole != content:
        with atomic_file(path) as aside:
            aside.write_bytes(whole)
    return len(content.splitlines()) > len(rows)
