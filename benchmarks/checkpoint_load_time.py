"""Time and memory to load a transformers checkpoint: `vitreous.load` compared with `from_pretrained`.

Each measurement runs in a new process, which imports its library first so that only loading is measured. The two
libraries alternate. Time and memory are measured after loading and again after the first forward pass, because a loader
that maps the file defers reading it to the forward pass.

Memory is the peak growth of the process after the imports, including mapped pages of the file. The file is in the page
cache.

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
from typing import Any, Literal, get_args

import torch
import tyro
from torch import nn

from benchmarks.publish_table import publish
from vitreous.model.config import ViTConfig
from vitreous.model.presets import preset
from vitreous.weights.formats.huggingface.config import transformers_config
from vitreous.weights.peers import repair_torchvision

Load = Callable[[Path], nn.Module]
System = Literal["vitreous", "transformers"]
Moment = Literal["loaded", "first output"]
PEER: System = "transformers"


@dataclass(frozen=True)
class Options:
    """Benchmark options."""

    model: str = "ViT-B/16"
    rounds: int = 9
    out: Path = Path("runs/bench/checkpoint_load_time.json")
    only: System | None = None  # set in measuring processes, together with the model folder
    folder: Path | None = None


@dataclass(frozen=True)
class Result:
    moment: str
    system: str
    seconds: float  # median
    megabytes: float  # median
    time_ratio: float  # relative to the peer; below 1 is faster
    memory_ratio: float


def transformers_model(config: ViTConfig) -> Any:
    repair_torchvision()
    from transformers import AutoConfig, AutoModelForImageClassification

    return AutoModelForImageClassification.from_config(AutoConfig.for_model(**transformers_config(config, "float32")))


def memory(field: str) -> float:
    """Return the memory of this process in MB: VmRSS is the current value, VmHWM the peak since the last reset."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise SystemExit(f"/proc/self/status has no {field}; this benchmark requires Linux")


def load_and_run(system: System, folder: Path) -> dict[Moment, tuple[float, float]]:
    """Measure seconds and megabytes after loading and after the first forward pass. Runs in a new process."""
    load = LOADERS[system]()
    image = torch.zeros(1, 3, 224, 224)
    torch.nn.functional.linear(image[0, 0], image[0, 0])  # initialise torch's threads and libraries

    gc.collect()  # free garbage left by the imports
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    before, start = memory("VmRSS"), time.perf_counter()
    model = load(folder)
    loaded = (time.perf_counter() - start, memory("VmHWM") - before)
    with torch.inference_mode():
        model(image)
    return {"loaded": loaded, "first output": (time.perf_counter() - start, memory("VmHWM") - before)}


def vitreous_loader() -> Load:
    import vitreous

    return vitreous.load


def transformers_loader() -> Load:
    repair_torchvision()
    from transformers import ViTForImageClassification, logging

    logging.disable_progress_bar()
    return lambda folder: ViTForImageClassification.from_pretrained(folder).eval()


LOADERS: dict[System, Callable[[], Load]] = {"vitreous": vitreous_loader, "transformers": transformers_loader}


def measured(system: System, folder: Path) -> dict[Moment, tuple[float, float]]:
    command = [sys.executable, "-m", "benchmarks.checkpoint_load_time", "--only", system, "--folder", str(folder)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    measurement: dict[Moment, tuple[float, float]] = json.loads(output.splitlines()[-1])
    return measurement


def main(options: Options) -> None:
    if options.only is not None and options.folder is not None:
        print(json.dumps(load_and_run(options.only, options.folder)))
        return
    torch.manual_seed(0)
    config = preset(options.model)
    assert isinstance(config, ViTConfig), f"{options.model} is not a ViT"
    found: dict[System, list[dict[Moment, tuple[float, float]]]] = {system: [] for system in get_args(System)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "model"
        transformers_model(config).save_pretrained(folder)
        size = (folder / "model.safetensors").stat().st_size / 1e6
        for turn in range(options.rounds + 1):
            for system in sorted(found, reverse=turn % 2 == 1):  # alternate the order
                measurement = measured(system, folder)
                if turn:  # the first round warms up the page cache
                    found[system].append(measurement)

    results = []
    for moment in get_args(Moment):
        middle = {
            system: tuple(statistics.median(run[moment][i] for run in measurements) for i in (0, 1))
            for system, measurements in found.items()
        }
        seconds, megabytes = middle[PEER]
        for system, (time_taken, grown) in middle.items():
            results.append(Result(moment, system, time_taken, grown, time_taken / seconds, grown / megabytes))

    rows = [
        [
            row.moment,
            row.system,
            f"{row.seconds * 1e3:.0f}",
            f"{row.megabytes:.0f}",
            f"{row.time_ratio:.2f}",
            f"{row.memory_ratio:.2f}",
        ]
        for row in results
    ]
    setting = f"{options.model}, {size:.0f} MB, float32, median of {options.rounds} processes"
    publish(setting, ["until", "system", "ms", "MB", "time ratio", "memory ratio"], rows, results, options.out)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
