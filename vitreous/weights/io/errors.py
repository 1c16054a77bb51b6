"""How the readers of foreign files say no: a reason, and one place that puts the file's name in front."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vitreous.common.checks import path_suggestion
from vitreous.model.presets import PRESETS
from vitreous.weights.io.safetensors_file import BadCheckpoint


class Refused(Exception):
    """Why a file is not read. It begins with a verb, because the file's name goes in front of it."""


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turn what goes wrong inside into a `BadCheckpoint` of one line that names the file.

    >>> with naming(Path("x.pth")):
    ...     raise Refused("is empty")
    Traceback (most recent call last):
        ...
    vitreous.weights.io.safetensors_file.BadCheckpoint: x.pth is empty
    """
    try:
        if path.exists() and not path.is_file():  # a pipe would wait for ever
            raise Refused("is not a file")
        yield
    except Refused as reason:
        raise BadCheckpoint(f"{path} {reason}") from reason
    except OSError as error:
        raise BadCheckpoint(f"{path} cannot be read: {error.strerror or error}") from error


def shown(text: object, most: int = 80) -> str:
    """What a stranger wrote, fit for a line of ours: short, and with nothing that a terminal would obey.

    >>> shown("posix.system"), shown("two\\nlines"), shown("x" * 99, most=5)
    ('posix.system', 'two\\\\nlines', 'xxxxx...')
    """
    line = str(text)[: most + 1].encode("unicode_escape").decode()
    return line if len(line) <= most else line[:most] + "..."


def not_there(path: Path) -> BadCheckpoint:
    """What to say of a path that does not exist; it may be the name of a preset."""
    if str(path) in PRESETS:
        kinds = "a folder, a file or hf-hub:owner/name"
        return BadCheckpoint(f"{path} is a preset, which has no weights: a checkpoint is {kinds}")
    return BadCheckpoint(f"there is no checkpoint {path}{path_suggestion(path)}")


def if_run(folder: Path) -> None:
    """A folder that is no checkpoint may be a training run, which has some inside."""
    for name in ("best", "last"):
        if (folder / name / "model.safetensors").is_file() and (folder / name / "config.json").is_file():
            inside = str(folder / name)
            raise BadCheckpoint(f"{folder} is a run, which holds checkpoints but is none (did you mean {inside!r}?)")
