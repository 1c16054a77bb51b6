"""Reading only regular files: a pipe or a device under the name of an image would block or never end."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

NOT_REGULAR = "not a regular file"


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file, or a link to one, for reading bytes. Anything else raises OSError and is not opened."""
    check_regular(path)
    # Something else may be there by now: opening does not block, and the check is repeated on what was opened.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    file = os.open(path, flags)
    try:
        _check(os.fstat(file), path)
        return os.fdopen(file, "rb", buffering=0)
    except BaseException:
        os.close(file)
        raise


def read_regular(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a regular file."""
    with open_regular(path) as file:
        return file.read()


def read_regular_text(path: str | os.PathLike[str], encoding: str = "utf-8") -> str:
    """The text of a regular file, with every kind of line end as a newline."""
    check_regular(path)
    return Path(path).read_text(encoding=encoding)


def check_regular(path: str | os.PathLike[str]) -> None:
    """Raise OSError if there is no regular file at `path`: for libraries that open it themselves."""
    _check(os.stat(path), path)


def _check(found: os.stat_result, path: str | os.PathLike[str]) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, NOT_REGULAR, os.fspath(path))
