"""Opens regular files only: reading a pipe or a device would block or never end."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

NOT_REGULAR = "not a regular file"


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file, or a link to one, for reading bytes; raise OSError for anything else."""
    check_regular(path)
    # The path may have changed since: opening does not block, and the check is repeated.
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
    """Raise OSError unless `path` is a regular file, before a library opens it."""
    _check(os.stat(path), path)


def _check(found: os.stat_result, path: str | os.PathLike[str]) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, NOT_REGULAR, os.fspath(path))
