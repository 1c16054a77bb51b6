"""What a user means by `IMAGES...` on the command line: files, folders, patterns, or a list on the standard input."""

import glob
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from vitreous.common.checks import fail, path_suggestion
from vitreous.common.text import plural, printable
from vitreous.data.sources.base import EXTENSIONS, is_image_file
from vitreous.data.sources.folders import MASKS, has_masks
from vitreous.data.split import split_name


def expand(arguments: Sequence[str]) -> list[Path]:
    """The pictures that are meant, each once, in the order of the arguments.

    A file is taken whatever its name. A folder stands for the pictures below it, at any depth, in sorted order, and so
    does a pattern (`*`, `?`, `[...]`, and `**` for any depth) that the shell has not expanded. Where a folder has
    pictures beside their masks, the masks are left out, which is said. `-` reads paths, one a line (or with a zero byte
    after each, as `find -print0` writes them), from the standard input.

    >>> expand(["no-such-folder/cat.jpg"])
    Traceback (most recent call last):
        ...
    ValueError: there is no file or folder 'no-such-folder/cat.jpg': 'no-such-folder' does not exist
    """
    found: dict[str, Path] = {}
    for argument in arguments:
        for word in _listed() if argument == "-" else [argument]:
            for path in _meant(word, literal=argument == "-"):
                found.setdefault(os.path.abspath(path), path)
    if not arguments:
        fail("images", "", "files, folders, globs, or - to read paths from the standard input")
    if not found:
        said = ", ".join(map(repr, arguments))
        raise ValueError(f"no pictures found: {said} was given, and pictures end in {_endings()}")
    return list(found.values())


def _listed() -> list[str]:
    text = os.fsdecode(sys.stdin.buffer.read())
    lines = text.split("\0" if "\0" in text else "\n")
    return [line for line in (line.rstrip("\r\n") for line in lines) if line.strip()]


def _meant(argument: str, literal: bool) -> Iterable[Path]:
    path = Path(argument).expanduser()
    if path.is_dir():
        return _unmasked(path)
    if path.exists():
        return [path]
    if literal or not glob.has_magic(argument):
        raise ValueError(f"there is no file or folder {argument!r}{path_suggestion(path)}")
    matches = [Path(match) for match in sorted(glob.glob(os.path.expanduser(argument), recursive=True))]
    if not matches:
        raise ValueError(f"nothing matches {argument!r}")
    pictures = [path for match in matches for path in (_below(match) if match.is_dir() else [match])]
    return [path for path in pictures if is_image_file(path.name)]


def _unmasked(folder: Path) -> list[Path]:
    """The pictures below a folder, without the masks that lie beside them where it is data to learn masks from."""
    found = _below(folder)
    if not has_masks(folder):
        return found
    masks = {path for path in found if _in_masks(path.relative_to(folder).parts)}
    pictures = [path for path in found if path not in masks]
    if not {path.stem for path in masks} & {path.stem for path in pictures}:  # folders that only have such names
        return found
    print(f"{printable(str(folder))} has pictures beside masks: {plural(len(masks), 'mask')} left out", file=sys.stderr)
    return pictures


def _in_masks(parts: Sequence[str]) -> bool:
    """Whether a path goes through `masks/` or, say, `train/masks/`."""
    inside = parts[1:] if split_name(parts[0]) else parts
    return len(inside) > 1 and inside[0].lower() in MASKS


def _below(folder: Path) -> list[Path]:
    """The pictures in a folder and in those below it, links followed; what is hidden stays hidden."""
    found, seen = [], set()
    for here, folders, names in os.walk(folder, followlinks=True):
        if (real := os.path.realpath(here)) in seen:  # a link back to where we came from
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__MACOSX")))
        found += [Path(here, name) for name in names if is_image_file(name)]
    return sorted(found)


def _endings() -> str:
    return ", ".join(f".{ending}" for ending in sorted(EXTENSIONS))
