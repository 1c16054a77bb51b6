"""Faults of a run: kills at any point, full disks, changed data, concurrent runs, damaged and foreign files."""

import dataclasses
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from train_runs import SERVER, skip_report, tiny
from vitreous.common import atomic_files as files
from vitreous.common.distributed import World
from vitreous.model.build import build_vit
from vitreous.model.config import ViTConfig
from vitreous.training import TrainConfig, checkpoint, run_folder
from vitreous.training import run as loop
from vitreous.training.run import train
from vitreous.training.run_folder import DataRecord
from vitreous.training.setup import batch_slices
from vitreous.weights.load import save


@pytest.fixture(autouse=True)
def _unreported(monkeypatch: pytest.MonkeyPatch) -> None:
    skip_report(monkeypatch)


def quick(out: Path, **changes: Any) -> TrainConfig:
    return dataclasses.replace(tiny(out, steps=22), **changes)  # 11 steps an epoch


def resumed(out: Path, **changes: Any) -> TrainConfig:
    return TrainConfig(out=out, resume=True, device="cpu", **changes)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two epochs, with copies of its checkpoints."""
    out = tmp_path_factory.mktemp("finished") / "run"
    with pytest.MonkeyPatch.context() as patch:
        skip_report(patch)
        train(quick(out, keep=2))
    return out


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def steps(out: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (out / "metrics.jsonl").read_text().splitlines()]


# ---- Death -----------------------------------------------------------------------------------------------------------


def write_version(last: Path, version: str) -> None:
    with files.atomic_folder(last, ours=("model", "progress.json")) as aside:
        for name in ("model", "progress.json"):
            (aside / name).write_text(version)


def die_during(work: Callable[[], None], operation: int) -> bool:
    """Call work in a child that exits before its n-th file operation; return False if it finished."""
    child = os.fork()
    if child == 0:
        seen = 0

        def count(event: str, arguments: Any) -> None:
            nonlocal seen
            if event in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.scandir", "shutil.rmtree"):
                seen += 1
                if seen == operation:
                    os._exit(9)

        try:
            sys.addaudithook(count)
            work()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


@pytest.mark.slow
@pytest.mark.parametrize("exchange", [True, False])
def test_kill_at_any_operation_leaves_a_checkpoint(
    exchange: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not exchange:
        monkeypatch.setattr(files, "_exchange", lambda one, other: False)
    versions, gone, operation = set(), False, 0
    while operation < 500:
        operation += 1
        out = tmp_path / f"run-{operation}"
        out.mkdir()
        (out / "data.json.gz").touch()
        write_version(out / "last", "before")
        died = die_during(lambda out=out: write_version(out / "last", "after"), operation)  # type: ignore[misc]
        gone = gone or not (out / "last").exists()
        assert run_folder.has_checkpoint(out)
        found = {(out / "last" / name).read_text() for name in ("model", "progress.json")}
        assert len(found) == 1
        versions |= found
        if not died:
            break
    assert versions == {"before", "after"}
    assert gone != exchange  # without an exchange there is a moment without a checkpoint


@pytest.mark.slow
def test_a_run_killed_between_two_renames_is_resumed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "last").rename(run / ".last.old")
    train(resumed(run))
    assert "finished" in capsys.readouterr().out
    assert steps(run) == [11, 22]


@pytest.mark.slow
@pytest.mark.parametrize("earlier_version", [False, True])
def test_a_run_without_its_checkpoint_is_rejected(earlier_version: bool, run: Path) -> None:
    shutil.rmtree(run / "last")
    if earlier_version:
        for name in (".saved", "data.json.gz"):
            (run / name).unlink()
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    with pytest.raises(ValueError, match=r"last is missing.*best, metrics.jsonl.*rename step-00000022 to last"):
        train(resumed(run))
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.name != ".lock"}.items() <= before.items()
    (run / "step-00000022").rename(run / "last")  # as the message proposes
    train(resumed(run))


@pytest.mark.parametrize("result", ["step-00000011", "metrics.json"])
def test_results_without_a_checkpoint_are_not_replaced(result: str, tmp_path: Path) -> None:
    """Also in a copy of a run without its hidden files, such as .saved."""
    (tmp_path / "data.json.gz").touch()
    assert not run_folder.has_checkpoint(tmp_path)
    (tmp_path / result).mkdir()
    with pytest.raises(ValueError, match=f"last is missing.*{result}"):
        run_folder.has_checkpoint(tmp_path)


def die_before_the_first_save(config: TrainConfig) -> None:
    loop.checkpoint.save = lambda *rest: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
    train(config)


@pytest.mark.slow
def test_a_run_killed_before_its_first_save_starts_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    process = SERVER.Process(target=die_before_the_first_save, args=(quick(tmp_path / "run", steps=11),))
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    assert steps(tmp_path / "run") == [11]  # reported, but not saved
    train(resumed(tmp_path / "run"))
    assert "starting from the beginning" in capsys.readouterr().out
    assert steps(tmp_path / "run") == [11]


@pytest.mark.slow
def test_copies_of_checkpoints_are_atomic(run: Path) -> None:
    """A kill while links are created leaves no copy; resuming restores a missing or incomplete one."""
    (run / "step-00000022" / "progress.json").unlink()
    assert die_during(lambda: checkpoint.keep_copy(run, 11, 2), 8)
    assert not (run / "step-00000011" / "training").exists() or (run / "step-00000011" / "progress.json").exists()
    train(resumed(run))
    assert (run / "step-00000022" / "progress.json").samefile(run / "last" / "progress.json")
    assert not list(run.glob(".step-00000022.*"))


# ---- Full disks and damage -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_incomplete_last_line_of_metrics_is_dropped(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(rows + rows.splitlines()[-1][:40])
    train(resumed(run))
    assert "metrics.jsonl: dropped the last line" in capsys.readouterr().out
    assert (run / "metrics.jsonl").read_text() == rows


def test_a_finished_run_is_not_overwritten(run: Path) -> None:
    before = (run / "last" / "model.safetensors").read_bytes()
    with pytest.raises(ValueError, match=r"already contains a run.*--resume"):
        train(quick(run))
    assert (run / "last" / "model.safetensors").read_bytes() == before


def test_a_last_line_that_lacks_only_its_newline_is_kept(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}')
    assert not loop.drop_rows_after(tmp_path / "metrics.jsonl", 2)
    loop.append_row(tmp_path / "metrics.jsonl", {"step": 3})
    assert steps(tmp_path) == [1, 2, 3]


def test_a_damaged_line_of_metrics_is_named(run: Path) -> None:
    rows = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text(rows[0][:30] + "\n" + rows[1] + "\n")
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 1 is not valid JSON"):
        train(resumed(run))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(disk)]
    if os.geteuid() != 0 or not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_full_disk_leaves_no_partial_line(small_disk: Path) -> None:
    path = small_disk / "metrics.jsonl"
    loop.append_row(path, {"step": 1})
    with pytest.raises(OSError, match=r"could not write .*metrics\.jsonl.*No space left"):
        loop.append_row(path, {"step": 2, "unreadable": ["x" * 100_000]})
    assert path.read_text() == '{"step": 1}\n'
    loop.append_row(path, {"step": 2})
    assert steps(small_disk) == [1, 2]


DEEP = "[" * 100_000
PROGRESS = {"step": 22, "best": 0.5, "best_step": 22, "since_best": 0, "seconds": 1.0}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", "{", "is not valid JSON"),
        ("config.json", '{"a": ' + DEEP, "nested too deeply"),
        ("config.json", '{"data": 3}', "data"),
        ("config.json", '{"data": "digits", "task": "sing"}', "task"),
        ("metrics.jsonl", DEEP + "\n{}", "nested too deeply"),
        ("last/progress.json", "", "is not valid JSON"),
        ("last/progress.json", '{"step": ' + DEEP, "nested too deeply"),
        ("last/progress.json", "[]", "object"),
        ("last/progress.json", '{"step": 3}', "missing.*best"),
        *(
            ("last/progress.json", json.dumps(PROGRESS | change), message)
            for change, message in (
                ({"step": 23, "best_step": 1}, "23"),
                ({"step": -1}, "negative"),
                ({"step": 2.5}, "of type int"),
                ({"step": True}, "of type int"),
                ({"step": 5}, "best_step"),
                ({"seconds": float("nan")}, "finite"),
                ({"best": "high"}, "of type float"),
                ({"steps": 3}, "not a field"),
            )
        ),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_a_damaged_file_is_named_in_one_line(name: str, content: str, message: str, run: Path) -> None:
    (run / "last" / "checksums.json").unlink()  # as in a run of an earlier version, where nothing else notices
    (run / name).write_text(content)
    with pytest.raises(ValueError, match=message) as error:
        train(resumed(run))
    assert str(run / name) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_flipped_byte_is_detected(run: Path) -> None:
    here = World(0, 1, torch.device("cpu"))
    for file in sorted(path for path in (run / "last").rglob("*") if path.is_file() and path.suffix != ".md"):
        content = file.read_bytes()
        for place in (0, len(content) // 2, len(content) - 1):
            file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
            with pytest.raises(ValueError, match=r"damaged|missing|JSON"):
                checkpoint.verify(run / "last", here)
        file.write_bytes(content)
    checkpoint.verify(run / "last", here)
    (shard,) = (run / "last" / "training").iterdir()
    shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    with pytest.raises(ValueError, match=r"shard-.*\.safetensors is damaged"):
        train(resumed(run))


def test_checksums_cover_files_of_any_size(tmp_path: Path) -> None:
    content = np.random.default_rng(0).bytes(2**24 + 2**20)
    (tmp_path / "large").write_bytes(content)
    (tmp_path / "empty").touch()
    found = checkpoint.checksums(tmp_path, ["empty", "large"], World(0, 1, torch.device("cpu")))
    assert found == {"empty": "00000000", "large": f"{zlib.crc32(content):08x}"}


@pytest.mark.slow
def test_the_model_card_may_be_edited(run: Path) -> None:
    (run / "last" / "README.md").write_text("My model")
    assert train(resumed(run)).metrics["loss"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["cut", "header", "removed"])
def test_a_broken_shard_without_checksums_is_named(damage: str, run: Path) -> None:
    (run / "last" / "checksums.json").unlink()
    (file,) = (run / "last" / "training").iterdir()
    content = file.read_bytes()
    if damage == "removed":
        file.unlink()
    else:
        file.write_bytes(content[: len(content) // 2] if damage == "cut" else b"\xff" * 20 + content[20:])
    with pytest.raises(ValueError, match="last") as error:
        train(resumed(run))
    assert "\n" not in str(error.value)


# ---- Changed data ----------------------------------------------------------------------------------------------------


def images(root: Path, classes: tuple[str, ...] = ("cat", "dog"), count: int = 10) -> Path:
    for number, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for index in range(count):
            pixels = np.random.default_rng(100 * number + index).integers(0, 255, (8, 8, 3), np.uint8)
            Image.fromarray(pixels).save(root / name / f"{index:02d}.png")
    return root


def on_images(out: Path, data: Path) -> TrainConfig:
    augment = dataclasses.replace(tiny(out).augment, repeats=1)
    return quick(
        out, data=str(data), steps=2, batch_size=8, overrides=tiny(out).overrides | {"channels": 3}, augment=augment
    )


def split_of(out: Path) -> dict[str, set[str]]:
    record = DataRecord.read(out / "data.json.gz")
    return {split: record.names(split) for split in record.splits}


def remove_one(root: Path) -> None:
    (root / "cat" / "00.png").unlink()


def add_one(root: Path) -> None:
    shutil.copy(root / "cat" / "00.png", root / "cat" / "000.png")


def rename_class(root: Path) -> None:
    (root / "cat").rename(root / "zebra")


def add_class(root: Path) -> None:
    shutil.copytree(root / "cat", root / "ant")


@pytest.mark.slow
@pytest.mark.parametrize("change", [remove_one, add_one, rename_class, add_class])
def test_changed_data_is_rejected(change: Callable[[Path], None], tmp_path: Path) -> None:
    data, out = images(tmp_path / "data"), tmp_path / "run"
    train(on_images(out, data))
    before = split_of(out)
    change(data)
    words = {
        remove_one: "1 sample removed",
        add_one: "1 sample added",
        rename_class: "classes added: 'zebra'",
        add_class: "'ant'",
    }
    with pytest.raises(ValueError, match=words[change]):
        train(resumed(out))
    if change in (rename_class, add_class):
        with pytest.raises(ValueError, match="start a new run"):
            train(resumed(out, allow_data_change=True))
        return
    for flag in (True, False):  # accepted changes are recorded
        train(resumed(out, allow_data_change=flag))
        after = split_of(out)
        assert not after["val"] & before["train"]
        assert not after["train"] & before["val"]
        assert after["val"] <= before["val"]
        assert sum(map(len, after.values())) == 20 + (1 if change is add_one else -1)


@pytest.mark.slow
def test_a_run_of_an_earlier_version_resumes_with_a_notice(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("data.json.gz", ".saved", "last/checksums.json"):
        (run / name).unlink()
    train(resumed(run))
    assert "data.json.gz is missing" in capsys.readouterr().out
    assert (run / "data.json.gz").exists()


# ---- Two runs, foreign files -----------------------------------------------------------------------------------------


def hold(out: Path, ready: Any, leave: Any) -> None:
    with run_folder.lock(out):
        ready.set()
        leave.wait(60)


@pytest.mark.slow
def test_a_second_run_in_a_folder_is_rejected(run: Path) -> None:
    ready, leave = SERVER.Event(), SERVER.Event()
    other = SERVER.Process(target=hold, args=(run, ready, leave))
    other.start()
    assert ready.wait(60)
    with pytest.raises(ValueError, match=f"run is in use by pid {other.pid} on "):
        train(resumed(run))
    other.kill()  # the system releases the lock
    other.join()
    train(resumed(run))


def test_a_run_that_claims_the_folder_meanwhile_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"

    def claimed_meanwhile(*rest: Any) -> Any:
        out.mkdir()
        (out / "config.json").write_text("theirs")
        return batch_slices(*rest)

    monkeypatch.setattr("vitreous.training.run.batch_slices", claimed_meanwhile)
    with pytest.raises(ValueError, match="already contains a run"):
        train(quick(out))
    assert (out / "config.json").read_text() == "theirs"


def test_a_worker_that_outlives_its_run_does_not_hold_the_lock(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    run = os.fork()
    if run == 0:
        with run_folder.lock(tmp_path):
            if os.fork() == 0:
                os.close(writer)
                os.read(reader, 1)  # until the test is over
            os._exit(0)
    os.waitpid(run, 0)
    with run_folder.lock(tmp_path):
        assert str(os.getpid()) in (tmp_path / ".lock").read_text()
        os.close(writer)
    os.close(reader)


def test_a_file_system_without_locks_is_warned_about(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*rest: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(run_folder.fcntl, "lockf", refuse)
    with pytest.warns(UserWarning, match=r"cannot be locked \(No locks available\)"), run_folder.lock(run):
        pass


@pytest.mark.parametrize(
    "name", ["best/thesis.txt", "last/thesis.txt", "metrics.json", "step-00000011/notes", "report.html"]
)
def test_a_folder_with_foreign_files_is_rejected(name: str, tmp_path: Path) -> None:
    (tmp_path / "run" / name).parent.mkdir(parents=True)
    (tmp_path / "run" / name).write_text("mine")
    with pytest.raises(ValueError, match=f"already contains {Path(name).parts[0]}"):
        train(quick(tmp_path / "run"))
    assert [path for path in (tmp_path / "run").rglob("*") if path.is_file()] == [tmp_path / "run" / name]


@pytest.mark.slow
def test_foreign_files_survive_saves_and_the_removal_of_old_copies(tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(quick(out, steps=11, keep=1))
    names = ["best/thesis.txt", "last/training/deep/notes", "step-00000005/mine", "step-old/mine", "step-00000011/mine"]
    for name in names:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(name)
    (out / "config.json").write_text((out / "config.json").read_text().replace('"steps": 11', '"steps": 33'))
    train(resumed(out))
    assert [(out / name).read_text() for name in names] == names
    assert sorted(path.name for path in out.glob("step-*")) == [
        "step-00000005", "step-00000011", "step-00000033", "step-old"
    ]  # fmt: skip


def test_saving_a_model_keeps_hidden_files_and_rejects_others(tmp_path: Path, small: ViTConfig) -> None:
    model, folder = build_vit(small), tmp_path / "model"
    save(model, folder)
    (folder / ".git").mkdir()
    (folder / ".git" / "HEAD").write_text("mine")
    save(model, folder)
    assert (folder / ".git" / "HEAD").read_text() == "mine"
    (folder / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"thesis\.txt"):
        save(model, folder)
    assert (folder / "thesis.txt").read_text() == "mine"
