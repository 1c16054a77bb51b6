"""Reads untrusted regular files and JSON of limited size. Pipes and devices are rejected, because they may block."""

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

NOT_REGULAR = "not a regular file"


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file, or a link to one, for binary reading. Raise OSError for anything else."""
    check_regular(path)
    # The path may have changed since the check: open without blocking and check again.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    file = os.open(path, flags)
    try:
        _check(os.fstat(file), path)
        return os.fdopen(file, "rb", buffering=0)
    except BaseException:
        os.close(file)
        raise


def read_regular(path: str | os.PathLike[str]) -> bytes:
    """Read the bytes of a regular file."""
    with open_regular(path) as file:
        return file.read()


def read_regular_text(path: str | os.PathLike[str], encoding: str = "utf-8") -> str:
    """Read the text of a regular file, with universal newlines."""
    check_regular(path)
    return Path(path).read_text(encoding=encoding)


def check_regular(path: str | os.PathLike[str]) -> None:
    """Raise OSError unless `path` is a regular file."""
    _check(os.stat(path), path)


def _check(found: os.stat_result, path: str | os.PathLike[str]) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, NOT_REGULAR, os.fspath(path))


# ---- JSON ------------------------------------------------------------------------------------------------------------


MAX_JSON_BYTES = 1 << 26
MAX_JSON_DEPTH = 64  # levels of nested objects and lists; configs need fewer than ten


def parse_json(text: str | bytes, source: Path | str, error: type[ValueError] = ValueError) -> Any:
    """Parse JSON text. If that fails, raise `error` with a one-line message that names `source`."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise error(_too_deep(source)) from None
    except ValueError as reason:
        raise error(f"{source} is not valid JSON: {reason}") from reason
    if _is_deeper(value, MAX_JSON_DEPTH):  # later code, such as repr, may be recursive
        raise error(_too_deep(source))
    return value


def read_json_object(file: Path, error: type[ValueError] = ValueError) -> dict[str, Any]:
    """Read a JSON object from a file. If that fails, raise `error` with a one-line message that names the file."""
    try:
        check_regular(file)  # opening a pipe would block
        if (size := file.stat().st_size) > MAX_JSON_BYTES:
            raise error(f"{file} is {size:,} bytes long; the maximum is {MAX_JSON_BYTES:,}")
        content = file.read_bytes()
    except OSError as reason:
        raise error(f"{file} cannot be read: {reason.strerror or reason}") from reason
    value = parse_json(content, file, error)
    if not isinstance(value, dict):
        raise error(f"{file} must contain a JSON object, got {type(value).__name__}")
    return value


def _is_deeper(value: Any, limit: int) -> bool:
    """Return True if objects and lists are nested more than `limit` levels deep. Recursion is not used."""
    level = [value]
    for _ in range(limit):
        level = [item for item in level if isinstance(item, dict | list)]
        level = [child for item in level for child in (item.values() if isinstance(item, dict) else item)]
    return any(isinstance(item, dict | list) for item in level)


def _too_deep(source: Path | str) -> str:
    return f"{source} is nested too deeply; the maximum is {MAX_JSON_DEPTH} levels"
