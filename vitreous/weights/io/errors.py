"""Errors of the file readers: a reason, and one place that adds the file's name."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class BadCheckpoint(ValueError):
    """A file or folder is not a complete, supported checkpoint; the message names it and the reason."""


class CannotHold(ValueError):
    """A format cannot store a part of a model, or computes it differently."""


class Refused(Exception):
    """The reason why a file is not read. It begins with a verb, because `naming` puts the file's name before it."""


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turn `Refused` and OSError into a one-line `BadCheckpoint` that names the file.

    >>> with naming(Path("x.pth")):
    ...     raise Refused("is empty")
    Traceback (most recent call last):
        ...
    vitreous.weights.io.errors.BadCheckpoint: x.pth is empty
    """
    try:
        if path.exists() and not path.is_file():  # opening a pipe would block
            raise Refused("is not a file")
        yield
    except Refused as reason:
        raise BadCheckpoint(f"{path} {reason}") from reason
    except OSError as error:
        raise BadCheckpoint(f"{path} cannot be read: {error.strerror or error}") from error


def shown(text: object, most: int = 80) -> str:
    """Escape and truncate untrusted text for one line.

    >>> shown("posix.system"), shown("two\\nlines"), shown("x" * 99, most=5)
    ('posix.system', 'two\\\\nlines', 'xxxxx...')
    """
    line = str(text)[: most + 1].encode("unicode_escape").decode()
    return line if len(line) <= most else line[:most] + "..."
