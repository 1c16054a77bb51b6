"""Loading a ViT from a folder that transformers has written: our `load` and its `from_pretrained`, time and memory.

Every measurement is a process of its own, which first imports its system, so that only the loading counts; the systems
take turns. Two moments are looked at: when the model is there, and when it has seen its first picture. The first alone
would flatter whoever only maps the file and leaves the reading for later.

Memory is how far the process grows at most beyond what it was after the imports, with the pages of the file that it
maps. The file is in the system's cache, as it is the second time that a model is used.

    python -m benchmarks.checkpoint_load_time --model ViT-B/16
"""

import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch
import tyro
from torch import nn

from benchmarks.peers import import_timm, transformers_vit
from benchmarks.publish_table import publish
from vitreous.model.config import ViTConfig
from vitreous.model.presets import preset

Load = Callable[[Path], nn.Module]
System = Literal["vitreous", "transformers"]
Moment = Literal["loaded", "first picture"]
PEER: System = "transformers"


@dataclass(frozen=True)
class Options:
    """What to measure."""

    model: str = "ViT-B/16"
    rounds: int = 9
    out: Path = Path("runs/bench/checkpoint_load_time.json")
    only: System | None = None  # for the processes that measure: one system, and where the model lies
    folder: Path | None = None


@dataclass(frozen=True)
class Result:
    moment: str
    system: str
    seconds: float  # the median
    megabytes: float  # likewise
    time_ratio: float  # relative to the peer; below 1 is faster
    memory_ratio: float


def memory(field: str) -> float:
    """Megabytes of this process, as Linux counts them: VmRSS now, VmHWM at most since the count was last set back."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise SystemExit(f"/proc/self/status has no {field}: memory is measured on Linux")


def load_and_look(system: System, folder: Path) -> dict[Moment, tuple[float, float]]:
    """In a process of its own: seconds and megabytes until the model is there, and until it has seen a picture."""
    load = LOADERS[system]()
    image = torch.zeros(1, 3, 224, 224)
    torch.nn.functional.linear(image[0, 0], image[0, 0])  # the threads and libraries that torch takes its time to load

    gc.collect()  # what the imports have left is not the loading's to clear away
    Path("/proc/self/clear_refs").write_text("5")  # sets the largest size back to the present one
    before, start = memory("VmRSS"), time.perf_counter()
    model = load(folder)
    loaded = (time.perf_counter() - start, memory("VmHWM") - before)
    with torch.inference_mode():
        model(image)
    return {"loaded": loaded, "first picture": (time.perf_counter() - start, memory("VmHWM") - before)}


def ours() -> Load:
    import vitreous

    return vitreous.load


def transformers() -> Load:
    import_timm()  # transformers imports torchvision where it finds one
    from transformers import ViTForImageClassification, logging

    logging.disable_progress_bar()
    return lambda folder: ViTForImageClassification.from_pretrained(folder).eval()


LOADERS: dict[System, Callable[[], Load]] = {"vitreous": ours, "transformers": transformers}


def measured(system: System, folder: Path) -> dict[Moment, tuple[float, float]]:
    command = [sys.executable, "-m", "benchmarks.checkpoint_load_time", "--only", system, "--folder", str(folder)]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    answer: dict[Moment, tuple[float, float]] = json.loads(said.splitlines()[-1])
    return answer


def main(options: Options) -> None:
    if options.only is not None and options.folder is not None:
        print(json.dumps(load_and_look(options.only, options.folder)))
        return
    torch.manual_seed(0)
    config = preset(options.model)
    assert isinstance(config, ViTConfig), f"{options.model} is not a ViT"
    found: dict[System, list[dict[Moment, tuple[float, float]]]] = {system: [] for system in get_args(System)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "model"
        transformers_vit(config).save_pretrained(folder)  # type: ignore[operator]
        size = (folder / "model.safetensors").stat().st_size / 1e6
        for turn in range(options.rounds + 1):
            for system in sorted(found, reverse=turn % 2 == 1):  # nobody always goes first
                answer = measured(system, folder)
                if turn:  # the first round warms up the cache of files
                    found[system].append(answer)

    results = []
    for moment in get_args(Moment):
        middle = {
            system: tuple(statistics.median(answer[moment][i] for answer in answers) for i in (0, 1))
            for system, answers in found.items()
        }
        seconds, megabytes = middle[PEER]
        for system, (time_taken, grown) in middle.items():
            results.append(Result(moment, system, time_taken, grown, time_taken / seconds, grown / megabytes))

    rows = [
        [
            one.moment,
            one.system,
            f"{one.seconds * 1e3:.0f}",
            f"{one.megabytes:.0f}",
            f"{one.time_ratio:.2f}",
            f"{one.memory_ratio:.2f}",
        ]
        for one in results
    ]
    setting = f"{options.model}, {size:.0f} MB, float32, medians of {options.rounds} processes each"
    publish(setting, ["until", "system", "ms", "MB", "time ratio", "memory ratio"], rows, results, options.out)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
