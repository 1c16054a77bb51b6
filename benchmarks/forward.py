"""Forward pass speed of the same ViT in Vitreous, transformers and timm.

The systems alternate in each round, so that machine noise affects all of them; compare the ratios.

    python -m benchmarks.forward --model ViT-B/16 --batch 8
"""

import dataclasses
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro
from torch import Tensor, nn

from benchmarks.peers import PEERS
from benchmarks.publish_table import publish
from vitreous.common.text import plural
from vitreous.model.build import build
from vitreous.model.config import ViTConfig
from vitreous.model.options import Gelu
from vitreous.model.presets import preset


@dataclass(frozen=True)
class Options:
    """Benchmark options."""

    model: str = "ViT-B/16"
    batch: int = 8
    rounds: int = 15
    against: tuple[str, ...] = ("transformers", "timm")
    out: Path = Path("runs/bench/forward.json")


@dataclass(frozen=True)
class Result:
    system: str
    seconds: float  # per batch, median
    images_per_second: float
    speed: float  # relative to the first peer; above 1 is faster


def measure(models: dict[str, nn.Module], images: Tensor, rounds: int) -> dict[str, float]:
    """Return the median time per batch. The systems alternate."""
    times: dict[str, list[float]] = {name: [] for name in models}
    with torch.inference_mode():
        for turn in range(rounds + 2):
            for name, model in sorted(models.items(), reverse=turn % 2 == 1):  # alternate the order
                start = time.perf_counter()
                model(images)
                if turn >= 2:  # skip warm-up rounds
                    times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def main(options: Options) -> None:
    torch.manual_seed(0)
    config = preset(options.model)
    assert isinstance(config, ViTConfig), f"{options.model} is not a ViT"
    config = dataclasses.replace(config, mlp=Gelu("erf"))  # like the peers; tanh is slower on a CPU
    models = {"vitreous": build(config)} | {name: PEERS[name](config) for name in options.against}
    seconds = measure(
        {name: model.eval() for name, model in models.items()},
        torch.randn(options.batch, config.channels, *config.image_size),
        options.rounds,
    )
    base = seconds[options.against[0]]
    results = [Result(name, value, options.batch / value, base / value) for name, value in seconds.items()]

    setting = f"{options.model}, batch {options.batch}, float32, {plural(torch.get_num_threads(), 'thread')}"
    rows = [
        [row.system, f"{row.seconds * 1e3:.0f}", f"{row.images_per_second:.2f}", f"{row.speed:.2f}"] for row in results
    ]
    publish(setting, ["system", "ms", "images/s", f"speed / {options.against[0]}"], rows, results, options.out)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
