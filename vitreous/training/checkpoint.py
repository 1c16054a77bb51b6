"""Training checkpoints, written to a temporary folder that is then renamed, so that a crash cannot corrupt them.

A checkpoint is a model folder that `vitreous.load` reads, with an additional subfolder `training/`. The subfolder
contains the weights, optimizer state and weight averages as safetensors, which torch.distributed.checkpoint can load
in any number of processes.
"""

import json
import math
import os
import re
import shutil
import time
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load as load_shards
from torch.distributed.checkpoint.state_dict_saver import save as save_shards

from vitreous.common.atomic_files import atomic_folder, foreign_files
from vitreous.common.codec import from_dict
from vitreous.common.distributed import World
from vitreous.common.untrusted_files import read_json_object
from vitreous.model.protocol import Model
from vitreous.training.optimizer_step import Ema, Optimizers, unsharded
from vitreous.weights.native import CARD, FILES, write_files

CHECKSUMS, PROGRESS = "checksums.json", "progress.json"
CONTENTS = (*FILES, PROGRESS, CHECKSUMS, "training/*.safetensors")  # files in a checkpoint
STEP = re.compile(r"step-\d{8,}")  # copies of earlier checkpoints
SMALL_BYTES = 1 << 22  # models with at most this many bytes of weights are saved after every evaluation
SAVE_INTERVAL = 200  # minimum time between large checkpoints, as a multiple of the time to write a checkpoint
INSTEAD = "resume from an earlier checkpoint by renaming its step-* folder to last, or start a new run"


ADDED = {"best_loss", "loss_scale", "loss_scale_age"}  # fields of Progress that early versions did not store


@dataclass
class Progress:
    """Current step, best result and training time of a run, as saved in a checkpoint."""

    step: int = 0
    best: float = -1e300  # larger is better; losses are negated
    best_loss: float = 1e300  # breaks ties
    best_step: int = 0
    since_best: int = 0  # number of evaluations since the best result
    seconds: float = 0.0
    loss_scale: float = 0.0  # of fp16; 0 if unused
    loss_scale_age: int = 0  # steps since the scale changed


@dataclass(frozen=True)
class State:
    """State of a run: model, optimizers, gradient scaler and moving average (EMA) of the weights."""

    model: Model
    module: nn.Module  # the module that the task trains, which contains the model
    optimizers: Optimizers
    ema: Ema | None
    scaler: torch.amp.GradScaler

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors of the state by name. A run is restored by loading a checkpoint into these tensors."""
        weights = dict(self.module.named_parameters())
        tensors = {f"weights.{name}": weight.detach() for name, weight in weights.items()}
        tensors |= {f"buffers.{name}": buffer for name, buffer in self.module.named_buffers()}
        for optimizer in self.optimizers.parts:
            for name, weight in weights.items():
                for key, value in optimizer.state.get(weight, {}).items():
                    tensors[f"optimizer.{name}.{key}"] = value
        if self.ema is not None:
            tensors |= {f"ema.{name}": average for name, average in self.ema.averages.items()}
        return tensors

    def export(self) -> tuple[Model, dict[str, Tensor]]:
        """Return the model and its unsharded weights on the CPU, with EMA applied and LoRA merged."""
        with self.ema.applied() if self.ema is not None else nullcontext():
            weights = merged_state(self.model)
            return self.model, {name: unsharded(value).to("cpu", copy=True) for name, value in weights.items()}


def merged_state(model: nn.Module) -> dict[str, Tensor]:
    """Return the state dict of a model with LoRA merged into its weights."""
    marker, state = ".parametrizations.weight.", {}
    for name, value in model.state_dict().items():
        owner, found, part = name.partition(marker)
        if not found:
            state[name] = value
        elif part == "original":
            linear = cast(nn.Linear, model.get_submodule(owner))
            state[f"{owner}.weight"] = linear.weight.detach()
    return state


def save(folder: Path, state: State, progress: Progress, world: World, provenance: Mapping[str, Any]) -> None:
    """Write a checkpoint. All processes must call this."""
    if state.scaler.is_enabled():
        scaling = state.scaler.state_dict()
        progress.loss_scale, progress.loss_scale_age = scaling["scale"], scaling["_growth_tracker"]
    model, weights = state.export()
    with atomic_folder(folder, ours=CONTENTS) if world.first else nullcontext(None) as mine:
        aside = world.gather(mine)[0]
        if world.first:
            write_files(model, aside, provenance, folder.parent.name, weights)
            (aside / PROGRESS).write_text(json.dumps(asdict(progress)))
        with _quiet():
            shards = HuggingFaceStorageWriter(str(aside / "training"), save_distributed=True)
            save_shards(state.tensors(), storage_writer=shards)
        world.wait()
        # Only the first process lists the files: on a network file system, other processes may not see all files yet.
        names = world.first_only(lambda: [name for name in foreign_files(aside, ()) if name != CARD])
        sums = checksums(aside, names, world)
        if world.first:
            (aside / CHECKSUMS).write_text(json.dumps(sums, indent=2))
        world.wait()
    world.wait()


class Saver:
    """Writes `best/` and `last/` during a run.

    Small checkpoints are written after every evaluation. Writing a large checkpoint can take longer than an epoch, so
    the time between large checkpoints is at least SAVE_INTERVAL times the time to write one. Until then, the best
    weights are kept in memory. `best/` is written before `last/`, so the best score recorded in `last/` is never newer
    than the weights in `best/`.
    """

    def __init__(self, folder: Path, state: State, world: World, keep: int, minutes: float):
        self.folder, self.state, self.world, self.keep, self.minutes = folder, state, world, keep, minutes
        self.small = sum(weight.nbytes for weight in state.module.parameters()) <= SMALL_BYTES
        self.saved, self.took = time.monotonic(), 0.0
        self.best: tuple[Model, dict[str, Tensor], Mapping[str, Any]] | None = None  # not yet written

    def due(self, evaluated: bool = False) -> bool:
        """Return True if a checkpoint should be written now. The result may differ between processes."""
        elapsed = time.monotonic() - self.saved
        return elapsed >= 60 * self.minutes or (evaluated and (self.small or elapsed >= SAVE_INTERVAL * self.took))

    def keep_best(self, provenance: Mapping[str, Any]) -> None:
        """Keep a copy of the current weights as the best weights. All processes must call this."""
        self.best = (*self.state.export(), provenance)

    def save(self, progress: Progress) -> None:
        """Write the state of the run, and the best model if it has changed. All processes must call this."""
        started = time.monotonic()
        if self.best is not None and self.world.first:
            model, weights, provenance = self.best
            with atomic_folder(self.folder / "best", ours=FILES) as aside:
                write_files(model, aside, provenance, self.folder.name, weights)
        self.best = None
        provenance = {"run": self.folder.name, "step": progress.step}
        save(self.folder / "last", self.state, progress, self.world, provenance)
        if self.world.first:
            keep_copy(self.folder, progress.step, self.keep)
        self.saved = time.monotonic()
        self.took = self.saved - started


def keep_copy(folder: Path, step: int, count: int) -> None:
    """Copy last/ to step-N with hard links, and delete all but the newest `count` copies."""
    if not count:
        return
    last, copy = folder / "last", folder / f"step-{step:08d}"
    names = set(foreign_files(last, ())) - set(foreign_files(last, CONTENTS))
    if not names <= set(foreign_files(copy, ())):
        with atomic_folder(copy, ours=CONTENTS) as aside:
            for name in names:
                (aside / name).parent.mkdir(exist_ok=True)
                os.link(last / name, aside / name)
    copies = [path for path in folder.iterdir() if STEP.fullmatch(path.name) and not path.is_symlink()]
    intact = [path for path in copies if (path / PROGRESS).is_file() and not foreign_files(path, CONTENTS)]
    for old in sorted(intact, key=lambda path: int(path.name.removeprefix("step-")))[:-count]:
        shutil.rmtree(old)


def load(folder: Path, state: State, world: World) -> Progress:
    """Restore a run that was saved by any number of processes. All processes must call this."""
    verify(folder, world)
    progress = read_progress(folder)
    state.optimizers.create_state()
    reader, tensors = HuggingFaceStorageReader(str(folder / "training")), state.tensors()
    try:
        with _quiet():
            load_shards(tensors, storage_reader=reader)
        stored = reader.read_metadata().state_dict_metadata.keys()
    except CheckpointException as error:
        [(reason, _), *_] = error.failures.values()
        raise ValueError(
            f"{folder} cannot be resumed: {str(reason).splitlines()[0]} (a run with a custom task "
            "must be resumed with that task)"
        ) from error
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{folder / 'training'} cannot be read: {str(error).splitlines()[0]}; {INSTEAD}") from error
    if left := sorted(stored - tensors.keys()):
        raise ValueError(
            f"{folder} cannot be resumed: unexpected tensor {left[-1]} ({len(left)} in total); "
            "restore the original config.json of the run"
        )
    if state.scaler.is_enabled() and progress.loss_scale:
        scaling = {"scale": progress.loss_scale, "_growth_tracker": progress.loss_scale_age}
        state.scaler.load_state_dict(state.scaler.state_dict() | scaling)
    return progress


def read_progress(folder: Path) -> Progress:
    """Read and validate progress.json of a checkpoint."""
    file = folder / PROGRESS
    document = read_json_object(file)
    try:
        progress = from_dict(Progress, document, "progress")
        numbers = asdict(progress)
        if missing := sorted({field.name for field in fields(Progress)} - ADDED - document.keys()):
            raise ValueError(f"missing fields: {', '.join(missing)}")
        if wrong := [name for name, value in numbers.items() if not math.isfinite(value)]:
            raise ValueError(f"progress.{wrong[0]} must be finite, got {numbers[wrong[0]]}")
        if wrong := [name for name, value in numbers.items() if value < 0 and name not in ("best", "best_loss")]:
            raise ValueError(f"progress.{wrong[0]} must not be negative, got {numbers[wrong[0]]}")
        if progress.best_step > progress.step:
            raise ValueError(f"progress.best_step must be at most step ({progress.step}), got {progress.best_step}")
    except ValueError as error:
        raise ValueError(f"{file}: {error}; {INSTEAD}") from error
    return progress


def checksums(folder: Path, names: Sequence[str], world: World) -> dict[str, str]:
    """Return the CRC-32 of each file. All processes must call this; each process reads some of the files."""
    mine = {name: _crc32(folder / name) for name in names[world.rank :: world.size]}
    return {name: value for part in world.gather(mine) for name, value in sorted(part.items())}


def verify(folder: Path, world: World) -> None:
    """Raise ValueError if a checkpoint file is missing or damaged. Checkpoints without checksums are accepted."""
    if not (folder / CHECKSUMS).exists():
        return
    expected = read_json_object(folder / CHECKSUMS)
    if missing := [name for name in expected if not (folder / name).is_file()]:
        raise ValueError(f"{folder / missing[0]} is missing; {INSTEAD}")
    actual = checksums(folder, list(expected), world)
    if damaged := [name for name, value in actual.items() if expected[name] != value]:
        raise ValueError(f"{folder / damaged[0]} is damaged: its checksum does not match; {INSTEAD}")


def _crc32(file: Path) -> str:
    value = 0
    with file.open("rb") as stream:
        while chunk := stream.read(1 << 24):
            value = zlib.crc32(chunk, value)
    return f"{value:08x}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress torch's warning about running in a single process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*single process")
        yield
