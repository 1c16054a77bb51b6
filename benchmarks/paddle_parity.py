"""Parity with Paddle: weight files in both directions, compared with a real paddlepaddle.

Paddle is too large to be a dependency and needs its own Python environment, without torch:

    python -m venv ../paddle && ../paddle/bin/pip install paddlepaddle
    python -m benchmarks.paddle_parity --paddle ../paddle/bin/python

Paddle files: Paddle saves models with random weights, Vitreous loads them (with an override for one whose eps differs
from PaddleClas), and the logits are compared. Vitreous files: Vitreous saves models of the same shapes with other
random weights, Paddle loads them with `set_state_dict`, which must report no missing or unexpected names, and the
logits are compared.

The models are a ViT-B/16 from a PaddleClas tutorial, with and without qkv bias, four models of PaddleClas and two of
PaddleViT, at full size in float32 on the CPU. The run takes two minutes on two cores and 2.6 GB of disk space. The
logits have a spread of 0.4 to 1; the largest difference was 5.1e-6 with both Paddle 3.3.1 and 2.6.2.
"""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro

import vitreous
from benchmarks.publish_table import publish
from vitreous.model.build import build_vit
from vitreous.model.vit import ViT
from vitreous.weights.native import provenance_of

ALLOWED = 2e-5


@dataclass(frozen=True)
class Options:
    """Benchmark options."""

    paddle: str  # Python executable with paddlepaddle
    folder: Path = Path("runs/bench/paddle")
    out: Path = Path("runs/bench/paddle.json")


@dataclass(frozen=True)
class Result:
    model: str
    format: str
    theirs: float  # largest logit difference with Paddle's file
    ours: float  # largest logit difference with Vitreous's file
    missing: list[str]  # names that Paddle did not find in Vitreous's file
    unexpected: list[str]

    @property
    def passed(self) -> bool:
        return max(self.theirs, self.ours) <= ALLOWED and not self.missing and not self.unexpected


def load_paddle(case: Mapping[str, Any], folder: Path) -> tuple[ViT, float]:
    model = vitreous.load(folder / f"{case['name']}.pdparams", overrides=case["overrides"])
    assert isinstance(model, ViT)
    assert provenance_of(model)["format"] == case["format"]
    found = np.load(folder / f"{case['name']}.npz")
    return model, difference(logits_of(model, found["images"]), found["logits"])


def write_fresh(model: ViT, case: Mapping[str, Any], folder: Path, images: np.ndarray[Any, Any]) -> None:
    """Write a model of the same config with random values in all weights."""
    fresh = build_vit(model.config).eval()
    with torch.no_grad():
        for parameter in fresh.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.02)
    vitreous.save(fresh, folder / f"{case['name']}.pdparams", format=case["format"], lossy=bool(case["overrides"]))
    np.savez(folder / f"{case['name']}.npz", images=images, logits=logits_of(fresh, images))


@torch.inference_mode()
def logits_of(model: ViT, images: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return model(torch.from_numpy(images)).numpy()


def difference(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> float:
    return float(np.abs(a - b).max())


def main(options: Options) -> None:
    torch.manual_seed(0)
    theirs, ours = options.folder / "theirs", options.folder / "ours"
    ours.mkdir(parents=True, exist_ok=True)
    script = Path(__file__).with_name("paddle_models.py")
    subprocess.run([options.paddle, script, "write", theirs], check=True)
    record = json.loads((theirs / "cases.json").read_text())
    read = {}
    for case in record["cases"]:
        model, read[case["name"]] = load_paddle(case, theirs)
        write_fresh(model, case, ours, np.load(theirs / f"{case['name']}.npz")["images"])
    subprocess.run([options.paddle, script, "read", ours], check=True)
    results = []
    for case in record["cases"]:
        name = case["name"]
        expected, got = np.load(ours / f"{name}.npz"), np.load(ours / f"{name} in Paddle.npz")
        written = difference(expected["logits"], got["logits"])
        names = got["missing"].tolist(), got["unexpected"].tolist()
        results.append(Result(name, case["format"], read[name], written, *names))

    setting = f"largest logit difference between Vitreous and Paddle {record['paddle']}, tolerance {ALLOWED:g}"
    rows = [
        [row.model, row.format, f"{row.theirs:.1e}", f"{row.ours:.1e}", "yes" if row.passed else "NO"]
        for row in results
    ]
    publish(setting, ["model", "format", "Paddle file", "Vitreous file", "passed"], rows, results, options.out)
    if not all(row.passed for row in results):
        raise SystemExit(1)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
