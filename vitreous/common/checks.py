"""Checks for config fields. Every error names the field, its value and the allowed values."""

import dataclasses
import difflib
import operator
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, Literal, NoReturn, get_args, get_origin, get_type_hints

Size = tuple[int, int]  # (height, width), always in this order


class BadValue(ValueError):
    """An invalid field value. The command line reports it as an invalid argument."""


def fail(field: str, value: object, allowed: str) -> NoReturn:
    """Raise BadValue with the field, its value and the allowed values."""
    shown = str(value) if isinstance(value, Path) else value
    raise BadValue(f"{field} is {shown!r}, but must be {allowed}")


def check_whole(field: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        fail(field, value, f"an integer from {low} to {high}")


def check_real(field: str, value: object, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:  # NaN compares false
        fail(field, value, f"a number from {low:g} to {high:g}")


def check_positive(field: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= sys.float_info.max:
        fail(field, value, "a finite number above 0")


def check_fraction(field: str, value: object) -> None:
    """Check that a drop probability is at least 0 and less than 1."""
    check_real(field, value, 0, 1)
    if value == 1:
        fail(field, value, "less than 1, because 1 would drop everything")


def check_flag(field: str, value: object) -> None:
    if not isinstance(value, bool):
        fail(field, value, "True or False")


def check_choice(field: str, value: object, allowed: Sequence[str]) -> None:
    if value not in allowed:
        fail(field, value, f"one of {', '.join(map(repr, allowed))}{suggestion(str(value), allowed)}")


def check_words(config: Any) -> None:
    """Check that every Literal field of a dataclass and its nested dataclasses has an allowed value."""
    for field, hint in get_type_hints(type(config)).items():
        value, kinds = getattr(config, field), (hint, *get_args(hint))
        if dataclasses.is_dataclass(value):
            check_words(value)
        words = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
        types = [kind for kind in kinds if isinstance(kind, type)]  # e.g. None or a number, checked elsewhere
        if words and type(value) not in types and (isinstance(value, str) or types in ([], [NoneType])):
            check_choice(field, value, words)


def check_kind(field: str, value: object, kinds: Sequence[type]) -> None:
    if not isinstance(value, tuple(kinds)):
        fail(field, value, f"one of {', '.join(kind.__name__ + '(...)' for kind in kinds)}")


def check_size(field: str, value: object, high: int) -> None:
    pair = (
        isinstance(value, tuple) and len(value) == 2 and all(type(side) is int and 1 <= side <= high for side in value)
    )
    if not pair:
        fail(field, value, f"a (height, width) pair of integers from 1 to {high}")


def check_numbers(field: str, value: object) -> None:
    if not isinstance(value, tuple) or not value:
        fail(field, value, "a tuple of numbers")
    for number in value:
        check_real(field, number, -1e6, 1e6)


def as_size(value: int | Sequence[int], name: str = "image_size") -> Size:
    """Convert one integer (the side of a square) or two integers to (height, width)."""
    try:
        sides = [operator.index(side) for side in (value if isinstance(value, Iterable) else (value,))]
    except TypeError:
        sides = []
    if len(sides) not in (1, 2):
        fail(name, value, "one integer (the side of a square) or two integers (height, width)")
    return (sides[0], sides[-1])


def suggestion(word: str, allowed: Iterable[str]) -> str:
    """Return ' (did you mean ...?)' if the word is similar to an allowed word, otherwise ''."""
    lowered = {name.lower(): name for name in allowed}
    close = difflib.get_close_matches(word.lower(), list(lowered), n=1)
    return f" (did you mean {lowered[close[0]]!r}?)" if close else ""


def path_suggestion(path: Path) -> str:
    """Return a hint that names the first missing part of a path and suggests a similar existing name."""
    missing = path
    while not missing.parent.exists() and missing.parent != missing:
        missing = missing.parent
    try:
        hint = suggestion(missing.name, set(os.listdir(missing.parent)) - {missing.name})  # a dangling link is listed
    except OSError:  # not a folder, or not readable
        hint = ""
    return hint if missing == path else f": {str(missing)!r} does not exist{hint}"


def check_tiling(size: Size, patch: Size, stride: int = 1) -> None:
    """Check that patches tile an image after the stem has padded it to a multiple of `stride`."""
    if all(side > 0 and -(-side // stride) * stride % step == 0 for side, step in zip(size, patch, strict=True)):
        return
    below = tuple(max(side // step, 1) * step for side, step in zip(size, patch, strict=True))
    above = tuple(-(-side // step) * step for side, step in zip(size, patch, strict=True))
    fits = " or ".join(f"{height} x {width}" for height, width in dict.fromkeys([below, above]))
    raise BadValue(
        f"an image of {size[0]} x {size[1]} (height x width) cannot be divided into {patch[0]} x {patch[1]} patches; "
        f"use {fits}, or build the model with pad=True"
    )
