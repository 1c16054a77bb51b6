"""Expand the `IMAGES...` of a command to image files: files, folders, globs, or a list on standard input."""

import glob
import os
import sys
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

from vitreous.common.checks import fail, path_suggestion
from vitreous.common.text import plural
from vitreous.data.sources.base import EXTENSIONS, is_image_file, split_name
from vitreous.data.sources.folders import MASKS, has_masks


class MasksSkipped(UserWarning):
    """A folder has masks beside its images; only the images are used."""


def expand(arguments: Sequence[str]) -> list[Path]:
    """The image files, each once, in the order of the arguments.

    A file is used whatever its name. A folder or an unexpanded glob (`*`, `?`, `[...]`, and `**` for any depth) expands
    to the images below it, at any depth, sorted; masks beside images are skipped with a warning. `-` reads paths from
    standard input, one per line or NUL-terminated as by `find -print0`.

    >>> expand(["no-such-folder/cat.jpg"])
    Traceback (most recent call last):
        ...
    ValueError: there is no file or folder 'no-such-folder/cat.jpg': 'no-such-folder' does not exist
    """
    found: dict[str, Path] = {}
    for argument in arguments:
        for word in _read_list() if argument == "-" else [argument]:
            for path in _expand_one(word, literal=argument == "-"):
                found.setdefault(os.path.abspath(path), path)
    if not arguments:
        fail("images", "", "files, folders, globs, or - to read paths from the standard input")
    if not found:
        words, extensions = ", ".join(map(repr, arguments)), ", ".join(f".{name}" for name in sorted(EXTENSIONS))
        raise ValueError(f"no images found in {words}: images end in {extensions}")
    return list(found.values())


def _read_list() -> list[str]:
    text = os.fsdecode(sys.stdin.buffer.read())
    lines = text.split("\0" if "\0" in text else "\n")
    return [line for line in (line.rstrip("\r\n") for line in lines) if line.strip()]


def _expand_one(argument: str, literal: bool) -> Iterable[Path]:
    path = Path(argument).expanduser()
    if path.is_dir():
        return _without_masks(path)
    if path.exists():
        return [path]
    if literal or not glob.has_magic(argument):
        raise ValueError(f"there is no file or folder {argument!r}{path_suggestion(path)}")
    matches = [Path(match) for match in sorted(glob.glob(os.path.expanduser(argument), recursive=True))]
    if not matches:
        raise ValueError(f"nothing matches {argument!r}")
    images = [path for match in matches for path in (_below(match) if match.is_dir() else [match])]
    return [path for path in images if is_image_file(path.name)]


def _without_masks(folder: Path) -> list[Path]:
    """The images below a folder; if it is a segmentation data set, without its masks."""
    found = _below(folder)
    if not has_masks(folder):
        return found
    masks = {path for path in found if _in_masks(path.relative_to(folder).parts)}
    images = [path for path in found if path not in masks]
    if not {path.stem for path in masks} & {path.stem for path in images}:  # the folder names are a coincidence
        return found
    message = f"{folder} has masks beside its images: {plural(len(masks), 'mask')} skipped"
    warnings.warn(MasksSkipped(message), stacklevel=2)
    return images


def _in_masks(parts: Sequence[str]) -> bool:
    """True for a path below `masks/` or, say, `train/masks/`."""
    inside = parts[1:] if split_name(parts[0]) else parts
    return len(inside) > 1 and inside[0].lower() in MASKS


def _below(folder: Path) -> list[Path]:
    """The images in a folder and below it; links are followed, hidden folders are skipped."""
    found, seen = [], set()
    for here, folders, names in os.walk(folder, followlinks=True):
        if (real := os.path.realpath(here)) in seen:  # a link that forms a cycle
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__MACOSX")))
        found += [Path(here, name) for name in names if is_image_file(name)]
    return sorted(found)
