"""--compile compiles training steps, with CUDA graphs if no result outlives a step, and no evaluations."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from train_runs import tiny
from vitreous.data.open import open_data
from vitreous.tasks.classify import Classify
from vitreous.training import Augment, Masking, TrainConfig, setup
from vitreous.training.distributed import World
from vitreous.training.run import train
from vitreous.training.setup import Job, choose

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
ONE = TrainConfig(data="digits", compile=True)


class Counted(nn.Module):
    """Replacement of a compiled module that counts its calls."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module, self.calls = module, 0

    def forward(self, *inputs: Any) -> Any:
        assert torch.is_grad_enabled()
        assert self.module.training
        self.calls += 1
        return self.module(*inputs)


def settings_of(task: str) -> dict[str, Any]:
    """With --flip-test, the first result must outlive the second call."""
    if task == "classify":
        return {"flip_test": True}
    light = Masking(decoder_width=32, decoder_depth=1) if task == "mae" else Masking()
    return {"masking": light, "augment": Augment(crop="padded")}


def job_of(out: Path, task: Any = None, **changes: Any) -> Job:
    data = open_data("digits")
    return setup.set_up(choose(tiny(out, **changes), data, "cpu").config, data, World(0, 1, CPU), task)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Counted, str | None]]:
    """Modules that were compiled, and their modes; nothing is compiled."""
    made: list[tuple[Counted, str | None]] = []

    def compile(module: nn.Module, mode: str | None = None) -> nn.Module:
        made.append((Counted(module), mode))
        return made[-1][0]

    monkeypatch.setattr(torch, "compile", compile)
    return made


@pytest.mark.parametrize(
    ("device", "size", "accumulate", "ours", "mode"),
    [
        (CUDA, 1, 1, True, "reduce-overhead"),
        (CPU, 1, 1, True, None),
        (CUDA, 2, 1, True, None),  # gradients go into DDP's buckets
        (CUDA, 1, 2, True, None),  # those of the first part wait for the second
        (CUDA, 1, 1, False, None),  # a task that may call its module twice
    ],
)
def test_cuda_graphs_only_if_gradients_are_not_kept(
    device: torch.device, size: int, accumulate: int, ours: bool, mode: str | None, compiled: list[Any]
) -> None:
    config = dataclasses.replace(ONE, accumulate=accumulate)
    assert setup.compiled(nn.Identity(), config, World(0, size, device), ours) is compiled[0][0]
    assert compiled[0][1] == mode


@pytest.mark.slow
@pytest.mark.parametrize("task", ["classify", "mae", "mpp"])
def test_only_steps_are_compiled(task: str, tmp_path: Path, compiled: list[Any]) -> None:
    """An evaluation has other batch sizes and no gradients, so it would be compiled again."""
    train(tiny(tmp_path, compile=True, steps=12, accumulate=2, task=task, **settings_of(task)))
    assert [module.calls for module, _ in compiled] == [24]


def test_parallel_wrapper_is_compiled_with_the_module(
    tmp_path: Path, compiled: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiling only the inner module would bypass DDP."""
    shared = Counted(nn.Identity())
    monkeypatch.setattr(setup, "parallelise", lambda *_: shared)
    job = job_of(tmp_path, compile=True)
    assert job.stepper.module is shared
    assert job.stepper.compiled is compiled[0][0]
    assert compiled[0][0].module is shared


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("task", [None, Classify])
def test_own_task_is_compiled_without_cuda_graphs(task: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(setup, "compiled", lambda module, config, world, called_once: seen.append(called_once))
    job_of(tmp_path, task, compile=True)
    assert seen == [task is None]


def test_no_gradient_is_kept_after_a_step(tmp_path: Path) -> None:
    """The next replay of the graph would overwrite it."""
    job = job_of(tmp_path)
    job.stepper(next(iter(job.loader.batches(0, 1))))
    assert all(weight.grad is None for weight in job.state.module.parameters())


@pytest.mark.slow
def test_nothing_is_compiled_by_default(tmp_path: Path, compiled: list[Any]) -> None:
    train(tiny(tmp_path, steps=1))
    assert compiled == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("task", "accumulate"), [("classify", 1), ("classify", 2), ("mae", 1), ("mpp", 1)])
def test_compiled_run_has_the_same_losses(task: str, accumulate: int, tmp_path: Path) -> None:
    losses = {}
    for compile in (False, True):
        out = tmp_path / str(compile)
        changes: dict[str, Any] = {"task": task, "accumulate": accumulate, "compile": compile, "device": "cuda"}
        train(tiny(out, **changes, dropout=0.0, stochastic_depth=0.0, **settings_of(task)))
        rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        losses[compile] = torch.tensor([row["train_loss"] for row in rows] + [row["val_loss"] for row in rows])
    torch.testing.assert_close(losses[True], losses[False], atol=0.02, rtol=0.02)
