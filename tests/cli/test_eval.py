"""The flags of `eval`, `predict` and `embed` are the arguments of the public functions."""

import inspect
from collections.abc import Callable

import pytest

import vitreous
from vitreous.cli.embed import embed
from vitreous.cli.eval import evaluate
from vitreous.cli.predict import predict


@pytest.mark.parametrize(
    ("verb", "function", "output"),
    [
        (evaluate, vitreous.evaluate, {"json", "out"}),
        (predict, vitreous.predict, {"json", "out"}),
        (embed, vitreous.embed, {"out"}),
    ],
)
def test_flags_are_the_arguments_of_the_function(
    verb: Callable[..., None], function: Callable[..., object], output: set[str]
) -> None:
    flags, arguments = (inspect.signature(one).parameters for one in (verb, function))
    assert set(flags) - {"checkpoint"} - output == set(arguments) - {"model", "progress"}
    for name in set(arguments) - {"model", "image_size", "progress"}:
        assert flags[name].default == arguments[name].default, name
