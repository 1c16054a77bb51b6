"""Data sets that have a name: two that come with the package, and well-known ones that are downloaded once.

`shapes` takes options, as in `shapes:size=96,count=4000`.
"""

from pathlib import Path

from vitreous.common.checks import suggestion
from vitreous.data.sources.arrays import from_arrays, read_npz
from vitreous.data.sources.published import PUBLISHED, open_published
from vitreous.data.sources.shapes import open_shapes
from vitreous.data.split import WHOLE, Found

FILES = Path(__file__).parent / "files"
NAMES = ("digits", "shapes", *PUBLISHED)
OPTIONS = {"shapes": ("size", "count", "val")}


def open_builtin(name: str, options: str, root: Path | None, seed: int) -> Found:
    """The data set of that name; `options` is what follows its colon."""
    chosen = parse_options(name, options)
    if name == "digits":
        return open_digits()
    if name == "shapes":
        return open_shapes(chosen, seed)
    return open_published(name, root)


def open_digits() -> Found:
    """1,797 handwritten digits of 8 x 8 grey pixels; files/digits.txt has their source and licence."""
    arrays = read_npz(FILES / "digits.npz")
    return from_arrays("digits", {WHOLE: (arrays["images"], arrays["labels"])}, None)


def parse_options(name: str, options: str) -> dict[str, int]:
    """Whole numbers by name.

    >>> parse_options("shapes", "size=96,count=4000")
    {'size': 96, 'count': 4000}
    """
    allowed = OPTIONS.get(name, ())
    if options and not allowed:
        raise ValueError(f"{name} takes no options, but {options!r} was given")
    chosen = {}
    for option in options.split(",") if options else ():
        key, _, value = option.partition("=")
        if key not in allowed:
            raise ValueError(f"{name} has no option {key!r}{suggestion(key, allowed)}: use {', '.join(allowed)}")
        if not value.isdecimal():
            raise ValueError(f"{name}: {key} is {value!r}, but must be a whole number, as in {name}:{key}=96")
        chosen[key] = int(value)
    return chosen
