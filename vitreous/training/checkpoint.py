"""Checkpoints to resume from, written to a temporary folder and renamed, so that a crash cannot damage the last one.

A checkpoint is a model folder that `vitreous.load` reads, with a subfolder `training/`: weights, optimizer state and
average as safetensors, which torch.distributed.checkpoint shards and loads with any number of processes.
"""

import json
import math
import os
import re
import shutil
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, cast

from safetensors import SafetensorError
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load as load_shards
from torch.distributed.checkpoint.state_dict_saver import save as save_shards

from vitreous.common.atomic_files import atomic_folder, foreign_files
from vitreous.common.codec import from_dict
from vitreous.common.untrusted_files import read_json_object
from vitreous.model.protocol import Model
from vitreous.training.distributed import World
from vitreous.training.optim import Ema, Optimizers, unsharded
from vitreous.weights.native import CARD, FILES, write_files

CHECKSUMS, PROGRESS = "checksums.json", "progress.json"
OURS = (*FILES, PROGRESS, CHECKSUMS, "training/*.safetensors")  # the files of a checkpoint
STEP = re.compile(r"step-\d{8,}")  # folders of earlier checkpoints
INSTEAD = "resume from an earlier checkpoint by renaming its step-* folder to last, or start a new run"


@dataclass
class Progress:
    """Progress of a run."""

    step: int = 0
    best: float = -1e300  # larger is better; losses are negated
    best_loss: float = 1e300  # decides between equal scores; missing in runs of early versions
    best_step: int = 0
    since_best: int = 0  # evaluations since the best one
    seconds: float = 0.0


@dataclass(frozen=True)
class State:
    """Everything that training changes."""

    model: Model
    module: nn.Module  # the module that the task trains; it contains the model
    optimizers: Optimizers
    ema: Ema | None

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name. Copying a checkpoint into them restores the run."""
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
        """The model and its final weights: averaged, not sharded, with LoRA merged, on the CPU."""
        with self.ema.applied() if self.ema is not None else nullcontext():
            weights = merged_state(self.model)
            return self.model, {name: unsharded(value).cpu().clone() for name, value in weights.items()}


def merged_state(model: nn.Module) -> dict[str, Tensor]:
    """The state dict of a model with the low-rank matrices merged, as that of a plain model."""
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
    """Write a checkpoint. Every process calls this."""
    model, weights = state.export()
    with atomic_folder(folder, ours=OURS) if world.first else nullcontext(None) as mine:
        aside = world.gather(mine)[0]
        if world.first:
            write_files(model, aside, provenance, folder.parent.name, weights)
            (aside / PROGRESS).write_text(json.dumps(asdict(progress)))
        with _quiet():
            shards = HuggingFaceStorageWriter(str(aside / "training"), save_distributed=True)
            save_shards(state.tensors(), storage_writer=shards)
        world.wait()
        # The first process lists the files: on a network file system, others may not see all of them yet.
        names = world.first_only(lambda: [name for name in foreign_files(aside, ()) if name != CARD])
        sums = checksums(aside, names, world)
        if world.first:
            (aside / CHECKSUMS).write_text(json.dumps(sums, indent=2))
        world.wait()
    world.wait()


def save_best(folder: Path, state: State, world: World, provenance: Mapping[str, Any]) -> None:
    """Write the model alone. Every process calls this."""
    model, weights = state.export()
    if world.first:
        with atomic_folder(folder, ours=FILES) as aside:
            write_files(model, aside, provenance, folder.parent.name, weights)


def keep_copy(folder: Path, step: int, count: int) -> None:
    """Copy last/ to step-N by hard links, and remove the oldest of our copies beyond `count`."""
    if not count:
        return
    last, copy = folder / "last", folder / f"step-{step:08d}"
    names = set(foreign_files(last, ())) - set(foreign_files(last, OURS))
    if not names <= set(foreign_files(copy, ())):
        with atomic_folder(copy, ours=OURS) as aside:
            for name in names:
                (aside / name).parent.mkdir(exist_ok=True)
                os.link(last / name, aside / name)
    copies = [path for path in folder.iterdir() if STEP.fullmatch(path.name) and not path.is_symlink()]
    ours = [path for path in copies if (path / PROGRESS).is_file() and not foreign_files(path, OURS)]
    for old in sorted(ours, key=lambda path: int(path.name.removeprefix("step-")))[:-count]:
        shutil.rmtree(old)


def load(folder: Path, state: State, world: World) -> Progress:
    """Restore a run. The number of processes may differ from the one that saved it. Every process calls this."""
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
            f"{folder} cannot be resumed: {str(reason).splitlines()[0]} (a run with a task of your "
            "own needs the same task again)"
        ) from error
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{folder / 'training'} cannot be read: {str(error).splitlines()[0]}; {INSTEAD}") from error
    if left := sorted(stored - tensors.keys()):
        raise ValueError(
            f"{folder} cannot be resumed: it has {len(left)} unexpected tensors, such as {left[-1]}: the "
            "run's config.json must be the one that the run began with"
        )
    return progress


def read_progress(folder: Path) -> Progress:
    """Read the progress of a checkpoint."""
    file = folder / PROGRESS
    document = read_json_object(file)
    try:
        progress = from_dict(Progress, document, "progress")
        numbers = asdict(progress)
        if missing := sorted({field.name for field in fields(Progress)} - {"best_loss"} - document.keys()):
            raise ValueError(f"progress lacks {', '.join(missing)}")
        if wrong := [name for name, value in numbers.items() if not math.isfinite(value)]:
            raise ValueError(f"progress.{wrong[0]} is {numbers[wrong[0]]}, but must be finite")
        if wrong := [name for name, value in numbers.items() if value < 0 and name not in ("best", "best_loss")]:
            raise ValueError(f"progress.{wrong[0]} is {numbers[wrong[0]]}, but must not be negative")
        if progress.best_step > progress.step:
            raise ValueError(f"progress.best_step is {progress.best_step}, but must be at most step, {progress.step}")
    except ValueError as error:
        raise ValueError(f"{file}: {error}; {INSTEAD}") from error
    return progress


def checksums(folder: Path, names: Sequence[str], world: World) -> dict[str, str]:
    """CRC-32 of each file. Every process calls this and reads some of the files."""
    mine = {name: _crc32(folder / name) for name in names[world.rank :: world.size]}
    return {name: value for part in world.gather(mine) for name, value in sorted(part.items())}


def verify(folder: Path, world: World) -> None:
    """Raise if a file of a checkpoint is missing or damaged. Checkpoints without checksums pass."""
    if not (folder / CHECKSUMS).exists():
        return
    expected = read_json_object(folder / CHECKSUMS)
    if missing := [name for name in expected if not (folder / name).is_file()]:
        raise ValueError(f"{folder / missing[0]} is missing; {INSTEAD}")
    actual = checksums(folder, list(expected), world)
    if damaged := [name for name, value in actual.items() if expected[name] != value]:
        raise ValueError(f"{folder / damaged[0]} is damaged: its checksum has changed since it was saved; {INSTEAD}")


def _crc32(file: Path) -> str:
    value = 0
    with file.open("rb") as stream:
        while chunk := stream.read(1 << 24):
            value = zlib.crc32(chunk, value)
    return f"{value:08x}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch's warning about running in a single process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*single process")
        yield
