"""Whether Paddle and we compute the same from the same file, in both directions, with the real paddlepaddle.

It is too large to be a dependency, and wants a Python of its own (not one with torch):

    python -m venv ../paddle && ../paddle/bin/pip install paddlepaddle
    python -m benchmarks.paddle_parity --paddle ../paddle/bin/python

Their file: Paddle saves models with random weights by `paddle.save`; we load each without a hint (but for one whose eps
is not PaddleClas's), and compare our logits with Paddle's. Our file: models of the same shapes with random weights of
ours; Paddle takes each by `paddle.load` and `set_state_dict`, which must find no name missing and none too many, and
its logits are compared with ours.

The models are a ViT-B/16 as a tutorial after PaddleClas defines it, with its own defaults and with the bias that those
leave out, four of PaddleClas's and two of PaddleViT's, at full size, in float32, on the CPU. That takes two minutes on
two cores and 2.6 GB of disk. Logits are spread by 0.4 to 1; the largest difference was 5.1e-6, both with Paddle 3.3.1
and with Paddle 2.6.2.
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
    """What to run it with."""

    paddle: str  # a Python that has paddlepaddle
    folder: Path = Path("runs/bench/paddle")
    out: Path = Path("runs/bench/paddle.json")


@dataclass(frozen=True)
class Result:
    model: str
    format: str
    theirs: float  # the largest difference between our logits and Paddle's, from Paddle's file
    ours: float  # the same from ours
    missing: list[str]  # names that Paddle did not find in our file
    unexpected: list[str]

    @property
    def passed(self) -> bool:
        return max(self.theirs, self.ours) <= ALLOWED and not self.missing and not self.unexpected


def load_theirs(case: Mapping[str, Any], folder: Path) -> tuple[ViT, float]:
    model = vitreous.load(folder / f"{case['name']}.pdparams", overrides=case["overrides"])
    assert isinstance(model, ViT)
    assert provenance_of(model)["format"] == case["format"]
    found = np.load(folder / f"{case['name']}.npz")
    return model, difference(answer(model, found["images"]), found["logits"])


def write_ours(model: ViT, case: Mapping[str, Any], folder: Path, images: np.ndarray[Any, Any]) -> None:
    """A model of the same config with weights of its own, none of them where it started."""
    fresh = build_vit(model.config).eval()
    with torch.no_grad():
        for parameter in fresh.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.02)
    vitreous.save(fresh, folder / f"{case['name']}.pdparams", format=case["format"], lossy=bool(case["overrides"]))
    np.savez(folder / f"{case['name']}.npz", images=images, logits=answer(fresh, images))


@torch.inference_mode()
def answer(model: ViT, images: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return model(torch.from_numpy(images)).numpy()


def difference(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> float:
    return float(np.abs(one - other).max())


def main(options: Options) -> None:
    torch.manual_seed(0)
    theirs, ours = options.folder / "theirs", options.folder / "ours"
    ours.mkdir(parents=True, exist_ok=True)
    script = Path(__file__).with_name("paddle_models.py")
    subprocess.run([options.paddle, script, "write", theirs], check=True)
    record = json.loads((theirs / "cases.json").read_text())
    read = {}
    for case in record["cases"]:
        model, read[case["name"]] = load_theirs(case, theirs)
        write_ours(model, case, ours, np.load(theirs / f"{case['name']}.npz")["images"])
    subprocess.run([options.paddle, script, "read", ours], check=True)
    results = []
    for case in record["cases"]:
        name = case["name"]
        expected, got = np.load(ours / f"{name}.npz"), np.load(ours / f"{name} in Paddle.npz")
        written = difference(expected["logits"], got["logits"])
        strangers = got["missing"].tolist(), got["unexpected"].tolist()
        results.append(Result(name, case["format"], read[name], written, *strangers))

    setting = f"max |difference| of logits, vitreous and Paddle {record['paddle']}, allowed {ALLOWED:g}"
    rows = [
        [one.model, one.format, f"{one.theirs:.1e}", f"{one.ours:.1e}", "yes" if one.passed else "NO"]
        for one in results
    ]
    publish(setting, ["model", "format", "their file", "our file", "passed"], rows, results, options.out)
    if not all(one.passed for one in results):
        raise SystemExit(1)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
