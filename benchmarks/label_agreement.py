"""Labels in other precisions and with token merging: top-1, agreement with PyTorch in float32, and CPU time.

The images are evenly spaced in the validation or test split. The rows alternate in each round on the same images, so
that the load of the machine affects all of them. CPU time includes preprocessing, and is relative to float32 with the
backend that a predictor chooses. int8 needs a checkpoint with int8 scales.

    vitreous quantise runs/pets/best --data DIR
    python -m benchmarks.label_agreement runs/pets/best --data DIR
"""

import statistics
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import tyro

from benchmarks.cpu_inference import Run, measure
from benchmarks.publish_table import publish
from vitreous.common.text import plural
from vitreous.exporting.compare_precisions import comparison_images, open_splits
from vitreous.inference import Predictor, open_model
from vitreous.inference.engine import Precision

LARGE_JOB = 10**9  # images, for which a predictor chooses the fastest backend


@dataclass(frozen=True)
class Options:
    """Benchmark options."""

    checkpoint: Annotated[Path, tyro.conf.Positional]
    data: str
    precisions: tuple[Precision, ...] = ("fp32", "bf16", "int8")
    merge_tokens: tuple[int, ...] = (4, 8, 13)  # each in float32
    images: int = 1000
    rounds: int = 15
    batch: int = 8  # for the CPU time
    out: Path = Path("runs/bench/label_agreement.json")


@dataclass(frozen=True)
class Row:
    option: str
    where: str
    images: int
    top1: float
    agreement: float  # fraction of the labels that PyTorch gives in float32
    cpu_seconds: float  # per batch, median
    cpu_ratio: float  # to float32, median of the rounds


def predictors(options: Options) -> dict[str, Predictor]:
    """Return a predictor for each row, with its backend."""
    model = open_model(options.checkpoint).eval()
    made = {name: Predictor(model, "cpu", precision=name, backend="auto") for name in options.precisions}
    found: dict[str, Predictor] = {f"--precision {name}": predictor for name, predictor in made.items()}
    for r in options.merge_tokens:
        found[f"--merge-tokens {r}"] = Predictor(model, "cpu", merge_tokens=r, backend="auto")
    for predictor in found.values():
        predictor.prepare(LARGE_JOB)
    return found


def main(options: Options) -> None:
    rows, exact = predictors(options), Predictor(open_model(options.checkpoint), "cpu")
    images, truth = comparison_images(exact.config, open_splits(exact.config, options.data).val, options.images)
    expected, labels = exact.logits(images).argmax(1), torch.from_numpy(truth)
    found = {name: predictor.logits(images).argmax(1) for name, predictor in rows.items()}
    runs: dict[str, Run] = {
        name: partial(predictor.logits, images[: options.batch]) for name, predictor in rows.items()
    }
    times = {name: [cpu for _, cpu in values] for name, values in measure(runs, options.rounds).items()}
    base = next(iter(times.values()))
    results = [
        Row(
            name,
            rows[name].where,
            len(images),
            top1=float((found[name] == labels).float().mean()),
            agreement=float((found[name] == expected).float().mean()),
            cpu_seconds=statistics.median(times[name]),
            cpu_ratio=statistics.median(one / other for one, other in zip(times[name], base, strict=True)),
        )
        for name in rows
    ]
    top1 = float((expected == labels).float().mean())
    setting = f"{options.checkpoint}, {plural(len(images), 'image')}, top-1 {top1:.2%} in float32 with PyTorch"
    cells = [
        [row.option, row.where, f"{row.top1:.2%}", f"{row.agreement:.2%}", f"{row.cpu_ratio:.2f}"] for row in results
    ]
    publish(setting, ["option", "computed on", "top-1", "same label", "CPU time"], cells, results, options.out)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
