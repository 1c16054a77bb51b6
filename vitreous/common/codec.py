"""Converts config dataclasses to JSON dictionaries and back, with the class name under `"kind"`.

Decoding is strict: unknown fields and values of the wrong type raise errors that name the path of the field. Missing
fields get their defaults.
"""

import dataclasses
import json
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from vitreous.common.checks import fail, suggestion

T = TypeVar("T")


def to_dict(config: Any) -> dict[str, Any]:
    """Convert a dataclass to a dictionary of JSON types."""
    fields = {f.name: _encode(getattr(config, f.name)) for f in dataclasses.fields(config)}
    return {"kind": type(config).__name__, **fields}


def from_dict(expected: type[T], data: object, path: str = "config") -> T:
    """Build an instance of `expected` from a dictionary of its fields. Errors use `path` as the name of `data`."""
    if not isinstance(data, dict):
        raise ValueError(f"{path} must be an object with the fields of {expected.__name__}, got {data!r}")
    hints = get_type_hints(expected)
    names = {f.name for f in dataclasses.fields(expected)}  # type: ignore[arg-type]
    kind = data.get("kind", expected.__name__)
    if kind != expected.__name__:
        raise ValueError(f"{path}.kind must be {expected.__name__!r}, got {kind!r}")
    for name in data:
        if name != "kind" and name not in names:
            raise ValueError(f"{path}.{name} is not a field of {expected.__name__}{suggestion(str(name), names)}")
    required = {f.name for f in dataclasses.fields(expected) if f.default is f.default_factory is dataclasses.MISSING}  # type: ignore[arg-type]
    if missing := sorted(required - data.keys()):
        raise ValueError(f"{path} lacks {', '.join(missing)}, which {expected.__name__} requires")
    return expected(**{name: decode(hints[name], data[name], f"{path}.{name}") for name in names & data.keys()})


def decode(hint: Any, value: object, path: str) -> Any:
    """Convert a JSON value to the type declared by `hint`."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _decode_union(arguments, value, path)
    if dataclasses.is_dataclass(hint):
        # Overrides in Python may be config objects.
        return value if isinstance(value, hint) else from_dict(hint, value, path)  # type: ignore[arg-type]
    if origin is Mapping:
        if not isinstance(value, Mapping):
            raise ValueError(f"{path} must be an object, got {value!r}")
        return dict(value)
    if origin is tuple:
        return _decode_tuple(arguments, value, path)
    if origin is Literal:
        return value  # the dataclass checks the value
    if hint is float and type(value) is int and abs(value) <= sys.float_info.max:
        return float(value)
    if hint is Path and isinstance(value, str | Path):
        return Path(value)
    if type(value) is not hint:
        raise ValueError(f"{path} must be of type {hint.__name__}, got {value!r}")
    return value


def _encode(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return to_dict(value)
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _encode(item) for key, item in value.items()}
    return str(value) if isinstance(value, Path) else value


def _decode_tuple(arguments: tuple[Any, ...], value: object, path: str) -> tuple[Any, ...]:
    if arguments == (int, int) and type(value) is int:
        value = (value, value)  # one number stands for a square
    if not isinstance(value, list | tuple):
        raise ValueError(f"{path} must be a list, got {value!r}")
    if arguments[-1] is Ellipsis:
        arguments = (arguments[0],) * len(value)
    if len(value) != len(arguments):
        raise ValueError(f"{path} must have {len(arguments)} entries, got {value!r}")
    return tuple(
        decode(hint, item, f"{path}[{i}]") for i, (hint, item) in enumerate(zip(arguments, value, strict=True))
    )


def _decode_union(arguments: tuple[Any, ...], value: object, path: str) -> Any:
    if value is None and type(None) in arguments:
        return None
    choices = [hint for hint in arguments if hint is not type(None)]
    if len(choices) == 1:
        return decode(choices[0], value, path)
    if not all(dataclasses.is_dataclass(choice) for choice in choices):
        if Path in choices and isinstance(value, str | Path):
            return value
        if any(value in get_args(kind) if get_origin(kind) is Literal else type(value) is kind for kind in choices):
            return value
        allowed = [
            choice.__name__ if isinstance(choice, type) else " or ".join(map(repr, get_args(choice)))
            for choice in choices
        ]
        raise ValueError(f"{path} must be {' or '.join(allowed)}, got {value!r}")
    if isinstance(value, tuple(choices)):
        return value
    by_name = {choice.__name__: choice for choice in choices}
    known = ", ".join(by_name)
    if not isinstance(value, dict):
        raise ValueError(f"{path} must be an object whose kind is one of {known}, got {value!r}")
    kind = value.get("kind")
    if not isinstance(kind, str) or kind not in by_name:
        raise ValueError(f"{path}.kind must be one of {known}, got {kind!r}{suggestion(str(kind), by_name)}")
    return from_dict(by_name[kind], value, path)


def parse_fields(texts: tuple[str, ...]) -> dict[str, Any]:
    """Parse `field=JSON` arguments from the command line."""
    fields = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            fields[name] = json.loads(value)  # also fails if there is no "="
        except json.JSONDecodeError:
            fail("set", text, 'field=JSON, e.g. registers=4 or \'position={"kind": "Rotary2d"}\'')
    return fields
