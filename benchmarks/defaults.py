"""Compares the defaults of `vitreous train` with hand-set alternatives, several seeds each.

Command:  python -m benchmarks.defaults DATA [DATA ...] --out FOLDER [--init CHECKPOINT] [--task segment] [--jobs 1]

DATA are data sets with their own validation or test images. The alternatives are those below for fine-tuning (with
--init) or for training from scratch. Results are appended to FOLDER/results.jsonl, and finished runs are not repeated.
Times can only be compared with --jobs 1. After --seconds, no further run starts.
"""

import json
import math
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Literal

import tyro

from vitreous.common.text import console

FINE_TUNING = {
    "default": "",
    "lora, 10 epochs": "--train-only lora --lr 1e-3 --epochs 10",
    "lora, 25 epochs": "--train-only lora --lr 1e-3 --epochs 25",
    "lora, 60 epochs": "--train-only lora --lr 1e-3 --epochs 60",
    "lora, lr 2e-3": "--train-only lora --lr 2e-3 --epochs 25",
    "all, layer decay 0.65": "--train-only all --layer-decay 0.65 --lr 1e-3 --epochs 25",
    "all, layer decay 0.75": "--train-only all --layer-decay 0.75 --lr 4e-4 --epochs 25",
    "all, no layer decay": "--train-only all --layer-decay 1 --lr 1e-4 --epochs 25",
    "checkpoint's image size": "--image-size 518",
    "112 pixels": "--image-size 112",
}
SCRATCH = {
    "default": "",
    "muon, lr 5e-3": "--optimizer muon --lr 5e-3",
    "muon, lr 1e-2": "--optimizer muon --lr 1e-2",
    "muon, lr 2e-2": "--optimizer muon --lr 2e-2",
    "muon, batch size 128": "--optimizer muon --lr 7e-3 --batch-size 128",
    "adamw": "--optimizer adamw",
    "adamw, lr 2e-3": "--optimizer adamw --lr 2e-3",
    "stochastic depth": "--stochastic-depth 0.1",
}
METRIC = {"classify": "top1", "segment": "miou"}


@dataclass(frozen=True)
class Options:
    """Command-line options."""

    data: tyro.conf.Positional[tuple[str, ...]]
    out: Path
    init: str | None = None
    task: Literal["classify", "segment"] = "classify"
    seeds: int = 3
    jobs: int = 1
    device: str = "auto"
    seconds: float = math.inf


@dataclass(frozen=True)
class Trial:
    """One run of one alternative."""

    data: str
    alternative: str
    seed: int
    score: float | None  # None if the run failed
    seconds: float | None


def run(options: Options, data: str, alternative: str, flags: str, seed: int) -> Trial:
    """Train once, as a user would, and return the score on the evaluated split."""
    folder = options.out / f"{Path(data).stem}-{alternative.replace(' ', '-').replace(',', '')}-{seed}"
    command = [sys.executable, "-m", "vitreous", "train", "--data", data, "--out", str(folder), "--seed", str(seed)]
    command += ["--auto-resume"]  # after an interruption
    command += ["--task", options.task, "--device", options.device, *flags.split()]
    command += ["--init", options.init] if options.init else []
    with open(f"{folder}.log", "w") as log:
        failed = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
    metrics = {} if failed else json.loads((folder / "metrics.json").read_text())
    return Trial(data, alternative, seed, metrics.get(METRIC[options.task]), metrics.get("seconds"))


def table(trials: Iterable[Trial], data: Iterable[str]) -> str:
    """Return a Markdown table: mean score in percent and seconds per data set, and the mean distance to the best."""
    done: dict[tuple[str, str], list[Trial]] = {}
    for trial in trials:
        if trial.score is not None:
            done.setdefault((trial.alternative, trial.data), []).append(trial)
    scores = {key: 100 * mean(trial.score or 0.0 for trial in group) for key, group in done.items()}
    seconds = {key: mean(trial.seconds or 0.0 for trial in group) for key, group in done.items()}
    best = {name: max((score for (_, other), score in scores.items() if other == name), default=0.0) for name in data}
    lines = [
        f"| alternative | {' | '.join(Path(name).stem for name in best)} | below the best |",
        "|---" * (len(best) + 2) + "|",
    ]
    for alternative in dict.fromkeys(alternative for alternative, _ in scores):
        cells = {name: (alternative, name) for name in best if (alternative, name) in scores}
        texts = [f"{scores[cells[name]]:.1f} ({seconds[cells[name]]:.0f} s)" if name in cells else "" for name in best]
        below = mean(best[name] - scores[key] for name, key in cells.items())
        lines.append(f"| {alternative} | {' | '.join(texts)} | {below:.2f} |")
    return "\n".join(lines)


def main(options: Options) -> None:
    options.out.mkdir(parents=True, exist_ok=True)
    results = options.out / "results.jsonl"
    trials = [Trial(**json.loads(line)) for line in results.read_text().splitlines()] if results.exists() else []
    finished = {(trial.data, trial.alternative, trial.seed) for trial in trials}
    alternatives = FINE_TUNING if options.init else SCRATCH
    todo = [
        (data, alternative, flags, seed)
        for seed in range(options.seeds)
        for alternative, flags in alternatives.items()
        for data in options.data
        if (data, alternative, seed) not in finished
    ]
    deadline = time.monotonic() + options.seconds
    with ThreadPoolExecutor(options.jobs) as pool:
        for trial in pool.map(lambda trial: run(options, *trial) if time.monotonic() < deadline else None, todo):
            if trial is None:
                continue
            trials.append(trial)
            with results.open("a") as file:
                file.write(json.dumps(vars(trial)) + "\n")
    console().print(table(trials, options.data), soft_wrap=True)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
