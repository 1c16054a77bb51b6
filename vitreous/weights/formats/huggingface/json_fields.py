"""Fields of a JSON file that somebody else has written: of the right kind, or a line that says which one is not.

A field that is absent or null is its default.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, overload

from vitreous.weights.io.safetensors_file import BadCheckpoint

Size = tuple[int, int]
LARGEST = 1 << 32  # pixels, far beyond every picture


def whole(path: Path, document: Mapping[str, Any], key: str, default: int) -> int:
    value = _given(document, key, default)
    return value if type(value) is int else _wrong(path, key, value, "a whole number")


def real(path: Path, document: Mapping[str, Any], key: str, default: float) -> float:
    value = _given(document, key, default)
    return float(value) if _is_real(value) else _wrong(path, key, value, "a number")


def rate(path: Path, document: Mapping[str, Any], key: str) -> float:
    """A probability of dropping something; by default 0."""
    value = real(path, document, key, 0.0)
    return value if 0 <= value < 1 else _wrong(path, key, value, "a number from 0 to below 1")


def flag(path: Path, document: Mapping[str, Any], key: str, default: bool) -> bool:
    value = _given(document, key, default)
    return value if isinstance(value, bool) else _wrong(path, key, value, "true or false")


def word(path: Path, document: Mapping[str, Any], key: str, default: str) -> str:
    value = _given(document, key, default)
    return value if isinstance(value, str) else _wrong(path, key, value, "a name")


@overload
def size(path: Path, document: Mapping[str, Any], key: str, default: Size) -> Size: ...
@overload
def size(path: Path, document: Mapping[str, Any], key: str, default: None) -> Size | None: ...
def size(path: Path, document: Mapping[str, Any], key: str, default: Size | None) -> Size | None:
    """Height and width: one number for both, two, or an object with either."""
    value = _given(document, key, default)
    if value is None:
        return None
    sides = [value.get("height"), value.get("width")] if isinstance(value, dict) else value
    sides = [sides, sides] if type(sides) is int else sides
    if (
        not isinstance(sides, list | tuple)
        or len(sides) != 2
        or not all(type(s) is int and 0 < s < LARGEST for s in sides)
    ):
        _wrong(path, key, value, "a whole number above 0, or two: height and width")
    return (sides[0], sides[1])


def numbers(path: Path, document: Mapping[str, Any], key: str, default: tuple[float, ...]) -> tuple[float, ...]:
    value = _given(document, key, default)
    values = [value] if type(value) in (int, float) else value
    if not isinstance(values, list | tuple) or not values or not all(map(_is_real, values)):
        _wrong(path, key, value, "a list of numbers")
    return tuple(map(float, values))


def _is_real(value: object) -> bool:
    """Which JSON's numbers need not be: they may have any number of digits, and NaN is one."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max  # type: ignore[arg-type]


def _given(document: Mapping[str, Any], key: str, default: Any) -> Any:
    value = document.get(key)
    return default if value is None else value


def _wrong(path: Path, key: str, value: object, right: str) -> NoReturn:
    raise BadCheckpoint(f"{path}: {key} is {value!r:.80}, but must be {right}")
