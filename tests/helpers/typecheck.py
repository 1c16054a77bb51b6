"""Checks the types and shapes of all calls under pytest, with beartype and jaxtyping.

jaxtyping's import hook decorates every function and dataclass with `jaxtyping.jaxtyped`, which binds the arguments,
opens a scope for the letters of shapes, and checks the arguments twice. That takes longer than most functions. The
replacement below checks once, and only functions whose annotations have shapes get a scope.
"""

import dataclasses
import functools
import inspect
import types
from collections.abc import Callable
from typing import Any, get_args, get_type_hints

import jaxtyping
from beartype import BeartypeConf, beartype

config, bound, scope = jaxtyping.config, jaxtyping.jaxtyped, jaxtyping.jaxtyped("context")
check = beartype(conf=BeartypeConf(is_pep484_tower=True))  # accepts an int for a float (PEP 484)


def jaxtyped(*, typechecker: Any) -> Callable[[Any], Any]:
    """Return a decorator for functions and classes that uses `check`."""
    return checked_class_or_function


def checked_class_or_function(made: Any) -> Any:
    if not inspect.isclass(made):
        return checked(made)
    if dataclasses.is_dataclass(made) and not hasattr(made.__init__, "__wrapped__"):
        made.__init__ = checked(made.__init__)
    return made


def checked(function: Any) -> Any:
    """Return a function that checks its arguments and result, unless jaxtyping is disabled."""
    if not function.__annotations__:
        return function
    checking: Any = None  # made in the first call, because most functions are not called in a process

    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        nonlocal checking
        __tracebackhide__ = True
        if config.jaxtyping_disable:
            return function(*arguments, **keywords)
        if checking is None:
            checking = make_checking(function)
        return checking(*arguments, **keywords)

    return call


def make_checking(function: Any) -> Any:
    hints = {name: resolved(hint, function.__globals__) for name, hint in function.__annotations__.items()}
    shapes = [part.dim_str for hint in hints.values() for part in parts(hint) if is_array(part)]
    checking = check(with_hints(function, hints))
    if any("{" in shape for shape in shapes):  # refers to an argument
        return bound(checking, typechecker=None)
    if not shapes:
        return checking

    def call_in_scope(*arguments: Any, **keywords: Any) -> Any:
        __tracebackhide__ = True
        with scope:
            return checking(*arguments, **keywords)

    return call_in_scope


def with_hints(function: Any, hints: dict[str, Any]) -> Any:
    """Return a copy of a function with other annotations."""
    copy = types.FunctionType(function.__code__, function.__globals__, closure=function.__closure__)
    functools.update_wrapper(copy, function)
    del copy.__wrapped__
    copy.__annotations__ = hints
    copy.__defaults__, copy.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    return copy


def resolved(hint: Any, names: dict[str, Any]) -> Any:
    """Replace types in quotes. If one is imported only for mypy, any value is accepted."""
    if not any(isinstance(part, str) for part in parts(hint)):
        return hint
    holder = types.SimpleNamespace(__annotations__={"hint": hint})
    try:
        return get_type_hints(holder, names, include_extras=True)["hint"]
    except NameError:
        return Any


def parts(hint: Any) -> list[Any]:
    """Return an annotation and, recursively, its arguments."""
    inner = hint if isinstance(hint, list | tuple) else get_args(hint)
    return [hint, *(part for one in inner for part in parts(one))]


def is_array(hint: Any) -> bool:
    return inspect.isclass(hint) and issubclass(hint, jaxtyping.AbstractArray)
