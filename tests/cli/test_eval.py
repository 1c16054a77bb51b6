"""`vitreous eval`; the flags of `eval`, `predict` and `embed` are the arguments of the public functions."""

import inspect
from collections.abc import Callable

import pytest

import vitreous
from command_line import CommandLine
from vitreous.cli.calibrate import calibrate
from vitreous.cli.embed import embed
from vitreous.cli.eval import evaluate
from vitreous.cli.predict import predict


@pytest.mark.parametrize(
    ("verb", "function", "output"),
    [
        (evaluate, vitreous.evaluate, {"json", "out"}),
        (calibrate, vitreous.calibrate, {"out"}),
        (predict, vitreous.predict, {"json", "out", "shard_size"}),
        (embed, vitreous.embed, {"out", "shard_size"}),
    ],
)
def test_flags_are_the_arguments_of_the_function(
    verb: Callable[..., None], function: Callable[..., object], output: set[str]
) -> None:
    flags, arguments = (inspect.signature(one).parameters for one in (verb, function))
    assert set(flags) - {"checkpoint"} - output == set(arguments) - {"model", "progress"}
    for name in set(arguments) - {"model", "image_size", "progress"}:
        assert flags[name].default == arguments[name].default, name


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["nowhere", "--data", "digits"], 1, "checkpoint nowhere not found"),
        (["x", "--data", "digits", "--cache", "y"], 2, "cache is y, but it only has an effect with"),
        (["x", "--data", "digits", "--probe", "linear", "--shots", "5"], 2, "effect with --probe fewshot"),
        (["x", "--data", "digits", "--probe", "fewshot", "--neighbours", "5"], 2, "effect with --probe knn"),
        (["x", "--data", "digits", "--probe", "knn", "--ignore", "sky"], 2, "omitted with --probe"),
        (["x", "--data", "digits", "--probe", "knn", "--target", "sky"], 2, "omitted with --probe"),
    ],
)
def test_invalid_arguments_exit_with_a_reason(
    command: CommandLine, arguments: list[str], status: int, message: str
) -> None:
    done = command("eval", *arguments)
    assert done.returncode == status
    assert message in " ".join(done.stderr.split())
