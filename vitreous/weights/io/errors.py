"""Exceptions raised when weight files are read or written."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class BadCheckpoint(ValueError):
    """Raised if a path is not a complete, supported checkpoint. The message gives the path and the reason."""


class UnsupportedByFormat(ValueError):
    """Raised if a format cannot represent a model, or if the format's library would compute different outputs."""


class InvalidFile(Exception):
    """Raised for a rejected file. The message is phrased to follow the file name, e.g. "is empty"."""


@contextmanager
def errors_for(path: Path) -> Iterator[None]:
    """Convert `InvalidFile` and OSError to a one-line `BadCheckpoint` that names the file."""
    try:
        if path.exists() and not path.is_file():  # opening a pipe would block
            raise InvalidFile("is not a file")
        yield
    except InvalidFile as reason:
        raise BadCheckpoint(f"{path} {reason}") from reason
    except OSError as error:
        raise BadCheckpoint(f"{path} cannot be read: {error.strerror or error}") from error


def shown(text: object, limit: int = 80) -> str:
    """Escape and truncate untrusted text for one line.

    >>> shown("posix.system"), shown("two\\nlines"), shown("x" * 99, limit=5)
    ('posix.system', 'two\\\\nlines', 'xxxxx...')
    """
    line = str(text)[: limit + 1].encode("unicode_escape").decode()
    return line if len(line) <= limit else line[:limit] + "..."
