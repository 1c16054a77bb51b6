"""A task that is not part of the package is trained, evaluated, reported, saved and resumed like any other."""

import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vitreous
from train_runs import skip_report, tiny
from vitreous.data.loader import Batch
from vitreous.model.inputs import normalise
from vitreous.tasks.base import Task
from vitreous.tasks.unlabelled import Losses
from vitreous.training import checkpoint
from vitreous.training import run as loop
from vitreous.training.run import Interrupted, train


class Counting(nn.Module):
    """A model with a buffer, which no gradient changes: the number of training steps."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, images: Tensor) -> Tensor:
        if self.training:
            self.steps += 1
        return self.model(images)


class Small(Task):
    """Trains a model to have small outputs."""

    metric, larger_is_better = "loss", False

    def __init__(self, config: Any, model: Any):
        super().__init__(config, model)
        self.net = Counting(model)

    def module(self) -> nn.Module:
        return self.net

    def loss(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        return module(inputs[0]).square().mean(1).sum(), torch.zeros(())

    @torch.no_grad()
    def evaluate(self, module: nn.Module, batches: Iterable[Batch], precision: torch.dtype) -> Losses:
        module.eval()
        parts = []
        for batch in batches:
            images = normalise(batch.images.float() / 255, self.model.config.preprocessing)
            parts.append(Losses(module(images).square().mean(1), batch.indices, batch.problems))
        module.train()
        return Losses.join(parts)


@pytest.mark.slow
def test_a_custom_task_is_trained_evaluated_and_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metrics = train(tiny(tmp_path / "run", steps=12), task=Small).metrics
    rows = [row for row in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines() if "val_loss" in row]
    assert len(rows) == 2
    assert metrics["loss"] < 0.5
    output = capsys.readouterr().out
    assert "loss" in output
    assert "--probe knn" in output  # not the commands for a classifier
    assert "Small, evaluated on the val split" in (tmp_path / "run" / "report.html").read_text()
    model = vitreous.load(tmp_path / "run" / "best")
    images = torch.zeros(2, 1, 8, 8)
    assert model(images).square().mean() < 0.5


@pytest.mark.slow
def test_buffers_are_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_report(monkeypatch)
    config = tiny(tmp_path / "run", steps=12)
    add = loop.Monitor.add

    def until_the_fifth(self: Any, result: Any, batch: Any) -> None:
        add(self, result, batch)
        self.seen = getattr(self, "seen", 0) + 1
        if self.seen == 5:
            handler = signal.getsignal(signal.SIGTERM)
            assert callable(handler)  # that of the run; a signal without it would end the test process
            handler(signal.SIGTERM, None)

    seen: list[float] = []
    whole = checkpoint.save

    def look(folder: Path, state: checkpoint.State, *rest: Any) -> None:
        seen.append(float(state.tensors()["buffers.steps"]))
        whole(folder, state, *rest)

    monkeypatch.setattr(checkpoint, "save", look)
    with monkeypatch.context() as patch:
        patch.setattr(loop.Monitor, "add", until_the_fifth)
        with pytest.raises(Interrupted):
            train(config, task=Small)
    train(tiny(tmp_path / "run", steps=12, resume=True), task=Small)
    assert seen[-1] == 12


def test_a_module_replaced_by_a_task_is_rejected_before_the_run_starts(tmp_path: Path) -> None:
    class Swapping(Small):
        def __init__(self, config: Any, model: Any):
            model.encoder.blocks[0].mlp.activation = nn.ReLU()
            super().__init__(config, model)

    with pytest.raises(ValueError, match=r"encoder\.blocks\.0\.mlp\.activation is ReLU\(\) in the model but GELU"):
        train(tiny(tmp_path / "run"), task=Swapping)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_lora_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_report(monkeypatch)
    train(tiny(tmp_path / "first", steps=12))
    init = {"init": tmp_path / "first" / "best", "model": None, "overrides": {}, "image_size": ()}
    train(tiny(tmp_path / "run", steps=12, train_only="lora", **init), task=Small)
    assert vitreous.load(tmp_path / "run" / "best").config.depth == 2


@pytest.mark.slow
def test_another_task_cannot_resume_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_report(monkeypatch)
    train(tiny(tmp_path / "run", steps=12), task=Small)
    with pytest.raises(ValueError, match=r"last cannot be resumed: .*must be resumed with that task"):
        train(tiny(tmp_path / "run", steps=12, resume=True))
