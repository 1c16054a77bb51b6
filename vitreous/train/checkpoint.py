"""Where a run stands, on disk: written aside and renamed into place, so that a crash never costs the last good one.

A checkpoint is a model folder that `vitreous.load` reads, and in it `training/`: weights, optimizer and average, as
safetensors that torch.distributed.checkpoint splits between processes and puts together for any other number of them.
The order of the data, the schedule and all randomness follow from the seed and the step: there is nothing to store.
"""

import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load as load_shards
from torch.distributed.checkpoint.state_dict_saver import save as save_shards

from vitreous.model.kinds import AnyModel
from vitreous.train.distributed import World
from vitreous.train.ema import Ema
from vitreous.train.lora import merged_state
from vitreous.train.optim import Optimizers
from vitreous.weights.files import atomic_folder, recover
from vitreous.weights.native import write_files


@dataclass
class Progress:
    """How far a run has come."""

    step: int = 0
    best: float = -1e300  # of what is better when it is larger; losses count with a minus
    best_step: int = 0
    since_best: int = 0  # evaluations since the best one
    seconds: float = 0.0


@dataclass(frozen=True)
class State:
    """Everything a run changes as it goes."""

    model: AnyModel
    module: nn.Module  # what the task trains, which holds the model
    optimizers: Optimizers
    ema: Ema | None

    def tensors(self) -> dict[str, Tensor]:
        """All of it by name. The tensors are the live ones: filling them restores the run."""
        weights = dict(self.module.named_parameters())
        tensors = {f"weights.{name}": weight.detach() for name, weight in weights.items()}
        tensors |= {f"buffers.{name}": buffer for name, buffer in self.module.named_buffers()}
        for part in self.optimizers.parts:
            for name, weight in weights.items():
                for key, value in part.state.get(weight, {}).items():
                    tensors[f"optimizer.{name}.{key}"] = value
        if self.ema is not None:
            tensors |= {f"ema.{name}": average for name, average in self.ema.averages.items()}
        return tensors

    def export(self) -> tuple[AnyModel, dict[str, Tensor]]:
        """The model for those who only use it: averaged, whole, on the CPU."""
        with self.ema.applied() if self.ema is not None else nullcontext():
            weights = merged_state(self.model)
            return self.model, {name: _whole(value).cpu().clone() for name, value in weights.items()}


def save(folder: Path, state: State, progress: Progress, world: World, provenance: Mapping[str, Any]) -> None:
    """Write a checkpoint. Every process calls this."""
    model, weights = state.export()
    with atomic_folder(folder) if world.first else nullcontext(None) as mine:
        aside = world.gather(mine)[0]
        if world.first:
            write_files(model, aside, provenance, folder.parent.name, weights)
            (aside / "progress.json").write_text(json.dumps(asdict(progress)))
        with _quiet():
            shards = HuggingFaceStorageWriter(str(aside / "training"), save_distributed=True)
            save_shards(state.tensors(), storage_writer=shards)
        world.wait()
    world.wait()


def load(folder: Path, state: State, world: World) -> Progress:
    """Put a run back to where it stood. The number of processes may be another one."""
    if world.first:
        recover(folder)
    world.wait()
    progress = Progress(**json.loads((folder / "progress.json").read_text()))
    state.optimizers.create_state()
    reader, tensors = HuggingFaceStorageReader(str(folder / "training")), state.tensors()
    try:
        with _quiet():
            load_shards(tensors, storage_reader=reader)
    except CheckpointException as error:
        [(reason, _), *_] = error.failures.values()
        raise ValueError(
            f"{folder} cannot be gone on with: {str(reason).splitlines()[0]} (a run of a task of your own needs its "
            "make_task again)"
        ) from error
    if left := sorted(reader.read_metadata().state_dict_metadata.keys() - tensors.keys()):
        raise ValueError(
            f"{folder} cannot be gone on with: there is no place for {len(left)} of its tensors, such as {left[-1]}: "
            "config.json must have what the run began with"
        )
    return progress


def _whole(tensor: Tensor) -> Tensor:
    """A tensor that FSDP holds in pieces, put together; every process must ask."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


@contextmanager
def _quiet() -> Iterator[None]:
    """torch warns that a single process is a single process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*single process")
        yield
