"""Fixtures for all tests: a fixed seed, a small config and a small checkpoint."""

import copy
import functools
import gc
import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import jaxtyping
import pytest
from hypothesis import settings

import typecheck

jaxtyping.jaxtyped = typecheck.jaxtyped  # before vitreous is imported

from browser_path import skip_browser_tests  # noqa: E402
from vitreous.common.threads import spin_briefly  # noqa: E402

settings.register_profile("vitreous", deadline=None)  # tests must not fail on a busy machine
settings.load_profile("vitreous")
spin_briefly()  # before torch is loaded
import torch  # noqa: E402

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # for the kernels; it has no effect after triton is imported

import vitreous  # noqa: E402
from vitreous.model.config import ViTConfig  # noqa: E402

if TYPE_CHECKING:
    from command_line import CommandLine

collect_ignore = ["helpers"]  # without tests


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Skip the browser tests if Chromium is missing, so that the summary has one line for all of them."""
    return True if collection_path == Path(__file__).parent / "browser" and skip_browser_tests() else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exclude modules and tests from garbage collection, which takes half a second each time with them.

    Objects of the tests are collected less often than by default: traced graphs consist of very many.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        gc.set_threshold(50_000, 10, 10)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if skip_browser_tests():
        terminalreporter.write_line("Browser tests skipped: no Chromium on the PATH. Install it to run them.")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _one_table_of_onnx_operators() -> None:
    """Keep torch's table of ONNX operators, for which every export would parse the sources of all of them."""
    module = sys.modules.get("torch.onnx._internal.exporter._registration")  # imported by the first export
    table = module and module.ONNXRegistry
    if table is None or isinstance(table.from_torchlib, functools.partial):
        return
    read = functools.cache(table.from_torchlib)

    def copied(*arguments: object, **options: object) -> object:
        registry = copy.copy(read(*arguments, **options))  # an export can add translations
        registry.functions = {target: list(found) for target, found in registry.functions.items()}
        return registry

    table.from_torchlib = functools.partial(copied)


@pytest.fixture
def small() -> ViTConfig:
    """A config with two layers and a non-square grid of 3 x 4 patches."""
    return ViTConfig(
        image_size=(24, 32), patch_size=(8, 8), width=32, depth=2, num_heads=4, mlp_width=64, num_classes=5
    )


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Disable the shape and type checks, which would reject a bad argument before the code under test does."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint folder of a small classifier."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("checkpoint") / "small"
    light = {"width": 64, "mlp_width": 128, "depth": 2, "num_heads": 2}
    vitreous.save(vitreous.create("ViT-Lite-6/4", num_classes=10, overrides=light), path)
    return path


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> "CommandLine":
    """Return a function that runs `vitreous` with the given arguments."""
    from command_line import CommandLine

    return CommandLine(monkeypatch, capsys)
