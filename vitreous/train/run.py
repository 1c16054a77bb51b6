"""`vitreous train` from beginning to end: look at the data, choose what was left open, train, evaluate, report."""

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from vitreous.data.masks import open_masked
from vitreous.data.open import open_data
from vitreous.data.source import DataSet
from vitreous.model.checks import fail
from vitreous.model.codec import from_dict, to_dict
from vitreous.model.segmenter import SegmenterConfig
from vitreous.train import loop
from vitreous.train.checkpoint import Progress
from vitreous.train.config import TrainConfig
from vitreous.train.defaults import choose
from vitreous.train.distributed import World, world
from vitreous.train.progress import Progress as Display
from vitreous.train.setup import MakeTask, set_up
from vitreous.train.start import check_start, start_config
from vitreous.train.summary import summarise
from vitreous.weights.files import atomic_file


def train(config: TrainConfig, command: str = "vitreous train", make_task: MakeTask | None = None) -> dict[str, Any]:
    """A run; returns what its metrics.json holds. `make_task` makes a task of your own (docs/training.md)."""
    started = time.monotonic()
    config.check()
    if config.resume:
        config = stored(config)
    with world(config.device) as here:
        console = Console(quiet=not here.first, soft_wrap=True, markup=False, emoji=False, highlight=False)
        check_start(config)
        data = _open(config)
        chosen = here.gather(choose(config, data, here.device.type, here.size))[0]  # free memory and names may differ
        config = chosen.config
        assert config.out is not None
        folder = config.out
        resume = config.resume and (folder / "last").exists()
        _refuse_another_run(folder, config)
        classes = {"classify": data.classes, "segment": data.mask_classes}.get(config.task)
        console.print(
            f"{data.name}: {data.note}" if classes is None else f"{data.name}: {len(classes)} classes; {data.note}"
        )
        for note in chosen.notes:
            console.print(f"  chosen: {note}")
        if chosen.advice:
            console.print(f"  {chosen.advice}")
        job = set_up(config, data, here, make_task)
        _claim(folder, config, resume, here)
        before = progress_in(folder) if resume else Progress()
        if before.step == job.total_steps:
            console.print("this run was finished: it is measured once more")
        epochs = job.total_steps / job.steps_per_epoch
        with Display(job.total_steps, job.steps_per_epoch, epochs, before.step, quiet=not here.first) as display:
            try:
                loop.run(job, folder, display, resume)
            except ValueError:
                _release(folder, here)
                raise
        seconds = before.seconds + time.monotonic() - started
        return summarise(job, folder, console, chosen.notes, command, seconds)


def _open(config: TrainConfig) -> DataSet:
    where: dict[str, Any] = {"root": config.data_root, "val_fraction": config.val_fraction, "seed": config.seed}
    if config.task == "segment":
        start = start_config(config)
        order = start.labels if isinstance(start, SegmenterConfig) else ()  # so that its decoder is of use
        return open_masked(config.data, **where, ignore=config.segmenting.ignore, order=order)
    return open_data(config.data, **where, labelled=config.task == "classify")


def stored(config: TrainConfig) -> TrainConfig:
    """The config of the run to go on with; only where and how fast it runs may differ from then."""
    assert config.out is not None
    path = config.out / "config.json"
    if not path.exists():
        raise ValueError(f"there is no run to resume in {config.out}: it has no config.json")
    before = from_dict(TrainConfig, json.loads(path.read_text()))
    _refuse_changes(config, before, TrainConfig(data="any"))
    return dataclasses.replace(
        before,
        resume=True,
        out=config.out,
        device=config.device,
        workers=config.workers if config.workers is not None else before.workers,
        parallel=config.parallel,
        data_root=config.data_root or before.data_root,
        max_unreadable=config.max_unreadable if config.max_unreadable is not None else before.max_unreadable,
    )


def progress_in(folder: Path) -> Progress:
    """How far the run in this folder has come."""
    try:
        return Progress(**json.loads((folder / "last" / "progress.json").read_text()))
    except FileNotFoundError:  # killed while it exchanged two checkpoints, which loading puts right
        return Progress()


MAY_CHANGE = ("resume", "out", "device", "workers", "parallel", "data_root", "max_unreadable")


def _refuse_changes(said: Any, before: Any, default: Any) -> None:
    """A resumed run goes on as it began, so what is said must be what was said then."""
    for field in dataclasses.fields(said):
        now, then, left_out = (getattr(config, field.name) for config in (said, before, default))
        if dataclasses.is_dataclass(now):
            _refuse_changes(now, then, left_out)
        elif field.name not in MAY_CHANGE and now not in (then, left_out, "", "auto"):
            fail(field.name, now, f"left out or {then!r}, as in the run to go on with")


def _refuse_another_run(folder: Path, config: TrainConfig) -> None:
    if (folder / "config.json").exists() and not config.resume:
        raise ValueError(f"{folder} already holds a run: choose another --out, or go on with it by --resume")


def _claim(folder: Path, config: TrainConfig, resume: bool, here: World) -> None:
    """Make a folder this run's, once nothing can be wrong with its arguments any more."""
    here.wait()  # until everyone has looked whether it is another's
    if here.first and not resume:
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_file(folder / "config.json") as aside:
            aside.write_text(json.dumps(to_dict(config), indent=2))


def _release(folder: Path, here: World) -> None:
    """A run that cannot be, and has saved nothing, leaves nothing behind."""
    if here.first and not any((folder / name).exists() for name in ("last", "best", "metrics.jsonl")):
        (folder / "config.json").unlink()
        if not any(folder.iterdir()):
            folder.rmdir()
