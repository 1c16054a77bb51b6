"""A task of somebody else's goes through the same loop: its figures, its report, its checkpoint, and going on later."""

import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vitreous
from train_runs import tiny
from vitreous.data.loader import Batch
from vitreous.model.inputs import normalise
from vitreous.tasks.base import Measured, Task
from vitreous.tasks.masked import Losses
from vitreous.training import checkpoint, loop
from vitreous.training.loop import Interrupted
from vitreous.training.run import train


class Counting(nn.Module):
    """A model that keeps a number that no gradient moves: how often it was trained on."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, images: Tensor) -> Tensor:
        if self.training:
            self.steps += 1
        return self.model(images)


class Small(Task):
    """Outputs that are small."""

    best, larger_is_better = "loss", False

    def __init__(self, model: Any, config: Any, data: Any, world: Any):
        self.preprocessing, self.net = model.config.preprocessing, Counting(model)

    def module(self) -> nn.Module:
        return self.net

    def prepare(self, batch: Batch) -> tuple[Tensor, ...]:
        return normalise(batch.images.float() / 255, self.preprocessing), torch.ones(len(batch.images))

    def loss(self, module: nn.Module, parts: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        return module(parts[0]).square().mean(1).sum(), torch.zeros(())

    @torch.no_grad()
    def measure(
        self, module: nn.Module, batches: Iterable[Batch], device: torch.device, precision: torch.dtype
    ) -> Measured:
        module.eval()
        parts = [
            Losses(module(self.prepare(batch)[0]).square().mean(1), batch.indices, batch.problems) for batch in batches
        ]
        module.train()
        return Losses.join(parts)


def test_it_is_trained_measured_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metrics = train(tiny(tmp_path / "run", steps=12), make_task=Small)
    rows = [row for row in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines() if "val_loss" in row]
    assert len(rows) == 2
    assert metrics["loss"] < 0.5
    said = capsys.readouterr().out
    assert "loss" in said
    assert "--probe knn" in said  # and not what a classifier is good for
    assert "Small, measured on the val part" in (tmp_path / "run" / "report.html").read_text()
    model = vitreous.load(tmp_path / "run" / "best")
    images = torch.zeros(2, 1, 8, 8)
    assert model(images).square().mean() < 0.5


def test_what_is_no_weight_goes_on_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny(tmp_path / "run", steps=12)
    add = loop.Monitor.add

    def until_the_fifth(self: Any, result: Any, batch: Any) -> None:
        add(self, result, batch)
        self.seen = getattr(self, "seen", 0) + 1
        if self.seen == 5:
            signal.raise_signal(signal.SIGTERM)

    seen: list[float] = []
    whole = checkpoint.save

    def look(folder: Path, state: checkpoint.State, *rest: Any) -> None:
        seen.append(float(state.tensors()["buffers.steps"]))
        whole(folder, state, *rest)

    monkeypatch.setattr(checkpoint, "save", look)
    with monkeypatch.context() as patch:
        patch.setattr(loop.Monitor, "add", until_the_fifth)
        with pytest.raises(Interrupted):
            train(config, make_task=Small)
    train(tiny(tmp_path / "run", steps=12, resume=True), make_task=Small)
    assert seen[-1] == 12


def test_a_part_swapped_by_a_task_is_refused_before_the_run_begins(tmp_path: Path) -> None:
    class Swapping(Small):
        def __init__(self, model: Any, *rest: Any):
            model.encoder.blocks[0].mlp.activation = nn.ReLU()
            super().__init__(model, *rest)

    with pytest.raises(ValueError, match=r"encoder\.blocks\.0\.mlp\.activation is ReLU\(\), but the config says GELU"):
        train(tiny(tmp_path / "run"), make_task=Swapping)
    assert not (tmp_path / "run").exists()


def test_lora_is_no_swapped_part(tmp_path: Path) -> None:
    train(tiny(tmp_path / "first", steps=12))
    init = {"init": tmp_path / "first" / "best", "model": None, "overrides": {}, "image_size": ()}
    train(tiny(tmp_path / "run", steps=12, train_only="lora", **init), make_task=Small)
    assert vitreous.load(tmp_path / "run" / "best").config.depth == 2


def test_another_task_cannot_go_on_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(tiny(tmp_path / "run", steps=12), make_task=Small)
    with pytest.raises(ValueError, match=r"last cannot be resumed: .*make_task"):
        train(tiny(tmp_path / "run", steps=12, resume=True))
