"""Example images that the page offers: those of a checkpoint, given files, or the built-in ones.

A checkpoint folder can have a folder samples/ with images that fit the model.
"""

import io
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, count, islice
from pathlib import Path

from PIL import Image, ImageOps

from vitreous.common.text import clean
from vitreous.data.image.decoding import UnreadableImage, decode_errors
from vitreous.page import STATIC

LONGEST = 640  # pixels of the longer side
MOST = 6  # samples of a checkpoint
BUILT_IN = ("balloon", "oranges", "lighthouse")
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")


@dataclass(frozen=True)
class Example:
    """An image in WebP format. `name` is used in URLs, `label` is shown."""

    name: str
    label: str
    data: bytes


def load_examples(paths: Sequence[Path] = ()) -> list[Example]:
    """Read images and shrink them, or return the built-in examples if there are no paths."""
    if not paths:
        return [
            Example(name, name.capitalize(), (STATIC / "examples" / f"{name}.webp").read_bytes()) for name in BUILT_IN
        ]
    examples: list[Example] = []
    for path in paths:
        stem = re.sub(r"[^A-Za-z0-9_-]+", "-", path.stem).strip("-")[:60] or "image"
        taken = {example.name for example in examples}
        name = next(name for name in chain([stem], (f"{stem}-{n}" for n in count(2))) if name not in taken)
        examples.append(Example(name, clean(path.stem.replace("_", " "))[:60], _shrunk(path)))
    return examples


def sample_paths(checkpoint: str | Path) -> list[Path]:
    """Return the images in the folder samples/ of a checkpoint, at most MOST, in alphabetical order.

    Hidden files are skipped, and unreadable ones with a warning.
    """
    folder = Path(checkpoint) / "samples"
    if not folder.is_dir():
        return []
    images = sorted(
        path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
    )
    return list(islice(filter(_is_readable, images), MOST))


def _is_readable(path: Path) -> bool:
    try:
        _shrunk(path)
    except ValueError as error:
        print(f"vitreous: warning: skipped a sample: {clean(str(error))}", file=sys.stderr)
        return False
    return True


def _shrunk(path: Path) -> bytes:
    try:
        with decode_errors(), Image.open(path) as opened:
            image = ImageOps.exif_transpose(opened)
            image.thumbnail((LONGEST, LONGEST))
            stored = io.BytesIO()
            image.convert("RGB").save(stored, "WEBP", quality=88)
    except UnreadableImage as error:
        raise ValueError(f"{path}: {error}") from None
    return stored.getvalue()
