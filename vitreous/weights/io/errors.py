"""Errors of the weight file readers."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class BadCheckpoint(ValueError):
    """A file or folder that is not a complete, supported checkpoint. The message names it and the reason."""


class UnsupportedByFormat(ValueError):
    """A model that a format cannot represent, or that the format's own code computes differently."""


class InvalidFile(Exception):
    """The reason a file is rejected, phrased to follow the file name: "is empty"."""


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
