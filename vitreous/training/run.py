"""`vitreous train` from beginning to end: open the data, choose defaults, train, evaluate, report."""

import dataclasses
import json
import time
from contextlib import ExitStack
from typing import Any

from vitreous.common.atomic_files import atomic_file
from vitreous.common.checks import fail
from vitreous.common.codec import from_dict, to_dict
from vitreous.common.json_files import read_json_object
from vitreous.common.text import SafeConsole
from vitreous.data.masks.folders import open_masked
from vitreous.data.open import open_data
from vitreous.data.sources.base import DataSet
from vitreous.model.config import SegmenterConfig
from vitreous.training import loop
from vitreous.training.checkpoint import Progress, read_progress
from vitreous.training.config import TrainConfig
from vitreous.training.data_record import DataRecord, resume_data
from vitreous.training.defaults import choose
from vitreous.training.distributed import World, world
from vitreous.training.initial_model import check_start, start_config
from vitreous.training.progress_display import Progress as Display
from vitreous.training.run_folder import CONFIG, DATA, SAVED, check_free, has_checkpoint, lock, release
from vitreous.training.setup import MakeTask, set_up
from vitreous.training.summary import summarise


def train(config: TrainConfig, command: str = "vitreous train", make_task: MakeTask | None = None) -> dict[str, Any]:
    """A run; returns what its metrics.json holds. `make_task` makes a task of your own (docs/training.md)."""
    started = time.monotonic()
    config.check()
    if config.resume:
        config = stored(config)
    with world(config.device) as here, ExitStack() as held:
        console = SafeConsole(quiet=not here.first, soft_wrap=True, markup=False, emoji=False, highlight=False)
        check_start(config)
        resume = config.resume and _find_checkpoint(config, here, held, console)
        data = _open(config)
        if config.resume:
            data = _as_recorded(data, config, here, console)
        chosen = here.gather(choose(config, data, here.device.type, here.size))[0]  # free memory and names may differ
        config = chosen.config
        assert config.out is not None
        folder = config.out
        if not config.resume:
            check_free(folder)
        classes = _classes(config, data)
        console.print(f"{data.name}: {len(classes)} classes; {data.note}" if classes else f"{data.name}: {data.note}")
        for note in chosen.notes:
            console.print(f"  chosen: {note}")
        if chosen.advice:
            console.print(f"  {chosen.advice}")
        job = set_up(config, data, here, make_task)
        if not config.resume:
            _claim(config, here, held)
        if here.first and (config.allow_data_change or not (folder / DATA).exists()):
            DataRecord.of(data, classes).write(folder / DATA)
        before = read_progress(folder / "last") if resume else Progress()
        if before.step > job.total_steps:
            raise ValueError(
                f"{folder / 'last' / 'progress.json'} is at step {before.step}, but the run has {job.total_steps} steps"
            )
        if before.step == job.total_steps:
            console.print("this run was finished: it is measured once more")
        epochs = job.total_steps / job.steps_per_epoch
        with Display(job.total_steps, job.steps_per_epoch, epochs, before.step, quiet=not here.first) as display:
            try:
                loop.run(job, folder, display, resume)
            except ValueError:
                if here.first:
                    release(folder)
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


def _classes(config: TrainConfig, data: DataSet) -> tuple[str, ...]:
    """Classes that the task learns, in the order of the model's outputs."""
    return {"classify": data.classes, "segment": data.mask_classes}.get(config.task, ())


def _as_recorded(data: DataSet, config: TrainConfig, here: World, console: SafeConsole) -> DataSet:
    """The data of a resumed run, compared with that of its start."""
    assert config.out is not None
    path = config.out / DATA
    if here.first_only(path.exists):
        return resume_data(data, DataRecord.read(path), _classes(config, data), config.allow_data_change)
    console.print(f"{config.out} has no {DATA}, so it is not known whether the data has changed since the run began")
    return data


def stored(config: TrainConfig) -> TrainConfig:
    """The config of the run to resume; only where and how fast it runs may differ."""
    assert config.out is not None
    path = config.out / CONFIG
    if not path.exists():
        raise ValueError(f"there is no run to resume in {config.out}: it has no config.json")
    try:
        before = from_dict(TrainConfig, read_json_object(path))
        before.check()
    except ValueError as error:
        named = str(error).startswith(str(path))
        raise ValueError(str(error) if named else f"{path}: {error}") from error
    _refuse_changes(config, before, TrainConfig(data="any"))
    return dataclasses.replace(
        before,
        resume=True,
        out=config.out,
        device=config.device,
        workers=config.workers if config.workers is not None else before.workers,
        parallel=config.parallel,
        data_root=config.data_root or before.data_root,
        allow_data_change=config.allow_data_change,
        max_unreadable=config.max_unreadable if config.max_unreadable is not None else before.max_unreadable,
    )


MAY_CHANGE = ("resume", "out", "device", "workers", "parallel", "data_root", "max_unreadable", "allow_data_change")


def _refuse_changes(said: Any, before: Any, default: Any) -> None:
    """Refuse flags that differ from those that the run began with."""
    for field in dataclasses.fields(said):
        now, then, left_out = (getattr(config, field.name) for config in (said, before, default))
        if dataclasses.is_dataclass(now):
            _refuse_changes(now, then, left_out)
        elif field.name not in MAY_CHANGE and now not in (then, left_out, "", "auto"):
            fail(field.name, now, f"left out or {then!r}, as in the run to go on with")


def _lock(config: TrainConfig, here: World, held: ExitStack) -> None:
    """Keep other runs out of the folder until `held` is closed. The first process does it for all."""
    folder = config.out
    assert folder is not None
    here.first_only(lambda: held.enter_context(lock(folder)))


def _find_checkpoint(config: TrainConfig, here: World, held: ExitStack, console: SafeConsole) -> bool:
    """Lock the folder of a run to resume; True if it has a checkpoint, False if it was killed before its first."""
    _lock(config, here, held)
    folder = config.out
    assert folder is not None
    found = here.first_only(lambda: has_checkpoint(folder))
    if found and here.first:
        (folder / SAVED).touch()  # runs of earlier versions lack it
    if not found:
        console.print(f"{folder} has no checkpoint yet: starting from the beginning")
    return found


def _claim(config: TrainConfig, here: World, held: ExitStack) -> None:
    """Make a folder this run's, once nothing can be wrong with its arguments any more."""
    folder = config.out
    assert folder is not None
    here.wait()  # until all processes have seen that it is free
    if here.first:
        folder.mkdir(parents=True, exist_ok=True)
    _lock(config, here, held)
    here.first_only(lambda: check_free(folder))  # another run may have claimed it meanwhile
    if here.first:
        (folder / SAVED).unlink(missing_ok=True)
        with atomic_file(folder / CONFIG) as aside:
            aside.write_text(json.dumps(to_dict(config), indent=2))
