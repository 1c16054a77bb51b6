"""`vitreous train` from beginning to end: look at the data, choose what was left open, train, evaluate, report."""

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from vitreous.data.open import open_data
from vitreous.model.codec import from_dict, to_dict
from vitreous.train import loop
from vitreous.train.config import TrainConfig
from vitreous.train.defaults import choose
from vitreous.train.distributed import World, world
from vitreous.train.progress import Progress as Display
from vitreous.train.setup import set_up
from vitreous.train.summary import summarise
from vitreous.weights.files import atomic_file


def train(config: TrainConfig, command: str = "vitreous train") -> dict[str, Any]:
    """A run; returns what its metrics.json holds."""
    started = time.monotonic()
    if config.resume:
        config = stored(config)
    with world(config.device) as here:
        console = Console(quiet=not here.first)
        data = open_data(config.data, root=config.data_root, val_fraction=config.val_fraction, seed=config.seed)
        chosen = choose(config, data, here.device.type, here.size)
        config = chosen.config
        folder = Path(here.gather(str(config.out))[0])
        resume = config.resume and (folder / "last").exists()
        _claim(folder, config, resume, here)
        console.print(
            f"{data.name}: {len(data.train):,} pictures to train on, {len(data.val):,} to validate, "
            f"{len(data.classes)} classes. {data.note}".strip()
        )
        for note in chosen.notes:
            console.print(f"  chosen: {note}", highlight=False)
        job = set_up(config, data, here)
        epochs = job.total_steps / job.steps_per_epoch
        with Display(job.total_steps, job.steps_per_epoch, epochs, quiet=not here.first) as display:
            loop.run(job, folder, display, resume)
        return summarise(job, folder, console, chosen.notes, command, time.monotonic() - started)


def stored(config: TrainConfig) -> TrainConfig:
    """The config of the run to go on with; only where and how fast it runs may differ from then."""
    assert config.out is not None
    path = config.out / "config.json"
    if not path.exists():
        raise ValueError(f"there is no run to resume in {config.out}: it has no config.json")
    before = from_dict(TrainConfig, json.loads(path.read_text()))
    return dataclasses.replace(
        before,
        resume=True,
        out=config.out,
        device=config.device,
        workers=config.workers if config.workers is not None else before.workers,
        parallel=config.parallel,
        data_root=config.data_root or before.data_root,
    )


def _claim(folder: Path, config: TrainConfig, resume: bool, here: World) -> None:
    """Refuse to write into another run's folder; then make it this run's."""
    if (folder / "config.json").exists() and not config.resume:
        raise ValueError(f"{folder} already holds a run: choose another --out, or go on with it by --resume")
    here.wait()
    if here.first and not resume:
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_file(folder / "config.json") as aside:
            aside.write_text(json.dumps(to_dict(config), indent=2))
