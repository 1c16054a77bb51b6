"""torchrun restarts a run of which one process was killed, and the result is that of an uninterrupted run."""

import os
import signal
from pathlib import Path

import pytest
import torch

from native_models import load_state
from torchrun import SMALL, parse_train, torchrun, wait_for, worker
from train_runs import finish, finish_in_two
from vitreous.common.checks import BadValue
from vitreous.common.distributed import world
from vitreous.training import TrainConfig
from vitreous.weights.io.safetensors_file import read_tensors


def weights(run: Path) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint: model, optimizer and weight average."""
    shards = sorted((run / "last" / "training").iterdir())
    return {f"{shard.name}/{name}": t for shard in shards for name, t in read_tensors(shard).items()} | load_state(
        run / "last"
    )


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc to find the processes of torchrun")
def test_a_run_with_a_killed_process_restarts_and_is_bit_identical(tmp_path: Path) -> None:
    arguments = [*SMALL, "--steps", "33"]  # saved after every 11 steps
    running = torchrun(2, *arguments, "--out", str(tmp_path / "killed"), "--auto-resume", restarts=1)
    try:
        wait_for(tmp_path / "killed" / ".saved", running)
        os.kill(worker(running, 1), signal.SIGKILL)
        output, _ = running.communicate(timeout=300)
    finally:
        running.kill()
    assert running.returncode == 0, output
    assert len((tmp_path / "killed" / "commands.txt").read_text().splitlines()) == 2, output

    finish_in_two(parse_train([*arguments, "--out", str(tmp_path / "whole")]))
    ours, theirs = weights(tmp_path / "killed"), weights(tmp_path / "whole")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.slow
def test_auto_resume_starts_a_run_and_then_resumes_it(tmp_path: Path) -> None:
    config = parse_train([*SMALL, "--steps", "3", "--out", str(tmp_path / "run"), "--auto-resume"])
    assert finish(config, stop_after=2) == 128 + signal.SIGTERM
    assert finish(config) == 0
    assert len((tmp_path / "run" / "commands.txt").read_text().splitlines()) == 2


@pytest.mark.parametrize("fields", [{}, {"out": "run", "resume": True}])
def test_auto_resume_needs_a_folder_and_excludes_resume(fields: dict[str, object]) -> None:
    with pytest.raises(BadValue, match="--auto-resume"):
        TrainConfig(data="digits", auto_resume=True, **fields).check()  # type: ignore[arg-type]


def test_restarts_with_a_shared_store_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restarted processes would read the addresses of the killed ones from torchrun's store."""
    for name, value in (("WORLD_SIZE", "2"), ("TORCHELASTIC_MAX_RESTARTS", "3")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    with pytest.raises(ValueError, match="TORCH_DISABLE_SHARE_RDZV_TCP_STORE"), world("cpu"):
        pass
