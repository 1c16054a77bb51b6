"""Checkpoints of large models are written less often, without losing the best weights."""

from pathlib import Path
from typing import Any

import pytest
import torch

from train_runs import tiny
from vitreous.common.distributed import World
from vitreous.data.open import open_data
from vitreous.training import checkpoint
from vitreous.training.checkpoint import Progress, Saver
from vitreous.training.defaults import choose
from vitreous.training.setup import set_up
from vitreous.weights.native import load_folder


@pytest.fixture
def saver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Saver of a run, with a clock that is advanced by hand."""
    now = [1000.0]
    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: now[0])
    data = open_data("digits")
    job = set_up(choose(tiny(tmp_path / "run"), data, "cpu").config, data, World(0, 1, torch.device("cpu")))
    job.state.optimizers.create_state()
    made = Saver(tmp_path / "run", job.state, World(0, 1, torch.device("cpu")), 0, 5.0)
    vars(made)["now"] = now
    return made


def test_small_checkpoints_are_written_after_every_evaluation(saver: Any) -> None:
    assert saver.due(evaluated=True)
    assert not saver.due()
    saver.now[0] += 300
    assert saver.due()


def test_large_checkpoints_take_half_a_percent_of_the_time(saver: Any) -> None:
    saver.small = False
    assert saver.due(evaluated=True)  # the first one
    saver.took = 0.5
    assert not saver.due(evaluated=True)
    saver.now[0] += 99
    assert not saver.due(evaluated=True)
    saver.now[0] += 1
    assert saver.due(evaluated=True)
    assert not saver.due()


def test_best_weights_of_an_earlier_evaluation_are_written(saver: Any, tmp_path: Path) -> None:
    model = saver.state.model
    before = {name: value.clone() for name, value in saver.state.export()[1].items()}
    saver.keep_best({"step": 3})
    with torch.no_grad():
        for average in saver.state.ema.averages.values():
            average.add_(1)
    assert not (tmp_path / "run" / "best").exists()
    (tmp_path / "run").mkdir(exist_ok=True)
    saver.save(Progress(step=5))
    best, last = (load_folder(tmp_path / "run" / name).state_dict() for name in ("best", "last"))
    assert all(torch.equal(best[name], value) for name, value in before.items())
    assert not all(torch.equal(last[name], value) for name, value in before.items())
    assert model.config == load_folder(tmp_path / "run" / "best").config
