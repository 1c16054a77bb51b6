"""Reads untrusted JSON: bounded in size and nesting, with one-line errors that name the file."""

import json
from pathlib import Path
from typing import Any

from vitreous.common.regular_files import check_regular

MAX_JSON_BYTES = 1 << 26
MAX_JSON_DEPTH = 64  # objects and lists within each other; configs have fewer than ten


def parse_json(text: str | bytes, source: Path | str, error: type[ValueError] = ValueError) -> Any:
    """Parse JSON text, or raise `error` with one line that names its source.

    >>> parse_json('{"a": [1]}', "x.json")
    {'a': [1]}
    >>> parse_json("[" * 100_000, "x.json")
    Traceback (most recent call last):
        ...
    ValueError: x.json is nested too deeply: at most 64 levels are read
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise error(_too_deep(source)) from None
    except ValueError as reason:
        raise error(f"{source} is not JSON: {reason}") from reason
    if _is_deeper(value, MAX_JSON_DEPTH):  # later code, even repr, may be recursive
        raise error(_too_deep(source))
    return value


def read_json_object(file: Path, error: type[ValueError] = ValueError) -> dict[str, Any]:
    """Read a JSON object from a file, or raise `error` with one line that names the file."""
    try:
        check_regular(file)  # opening a pipe would block
        if (size := file.stat().st_size) > MAX_JSON_BYTES:
            raise error(f"{file} has {size:,} bytes, but must have at most {MAX_JSON_BYTES:,}")
        content = file.read_bytes()
    except OSError as reason:
        raise error(f"{file} cannot be read: {reason.strerror or reason}") from reason
    value = parse_json(content, file, error)
    if not isinstance(value, dict):
        raise error(f"{file} holds a {type(value).__name__}, but must hold an object")
    return value


def _is_deeper(value: Any, most: int) -> bool:
    """Return True if objects and lists are nested more than `most` levels deep, without recursion."""
    level = [value]
    for _ in range(most):
        level = [item for item in level if isinstance(item, dict | list)]
        level = [child for item in level for child in (item.values() if isinstance(item, dict) else item)]
    return any(isinstance(item, dict | list) for item in level)


def _too_deep(source: Path | str) -> str:
    return f"{source} is nested too deeply: at most {MAX_JSON_DEPTH} levels are read"
