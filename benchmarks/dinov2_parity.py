"""Parity of a Meta DINOv2 checkpoint between Vitreous and transformers.

Vitreous loads the checkpoint and saves it in the transformers format, which `AutoModel` must load without missing or
unexpected keys. Both models then process the same random images, at the model's own size and at a non-square size. The
embedded tokens, the output of each layer and the features after the final norm are compared.

Before the final norm, some channels reach about 100, so differences are also reported relative to the largest value.

    python -m benchmarks.dinov2_parity dinov2_vits14_reg4_pretrain.pth --attention eager

`eager` is the attention implementation of transformers; `sdpa` calls the same torch function as Vitreous. Result for
ViT-S/14 with registers on a CPU, at both sizes: features differ by at most 1.5e-5 with `eager` and are equal with
`sdpa`.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import tyro
from torch import Tensor

import vitreous
from benchmarks.publish_table import publish
from vitreous.model.vit import ViT
from vitreous.weights.peers import repair_torchvision

ALLOWED = 1e-4  # of the features


@dataclass(frozen=True)
class Options:
    """Benchmark options."""

    checkpoint: tyro.conf.Positional[Path]
    other: tuple[int, int] = (224, 322)  # height and width
    images: int = 2
    attention: Literal["eager", "sdpa"] = "eager"  # implementation in transformers
    out: Path = Path("runs/bench/dinov2_parity.json")


@dataclass(frozen=True)
class Result:
    size: tuple[int, int]
    stage: str
    largest: float  # largest absolute difference
    mean: float
    share: float  # largest difference relative to the largest value


def exported(ours: ViT, attention: str) -> Any:
    """Convert the model to transformers."""
    repair_torchvision()
    from transformers import AutoModel

    with tempfile.TemporaryDirectory() as folder:
        vitreous.save(ours, Path(folder) / "model", format="huggingface")
        theirs, about = AutoModel.from_pretrained(
            Path(folder) / "model", output_loading_info=True, attn_implementation=attention
        )
    if wrong := {kind: names for kind, names in about.items() if names}:
        raise SystemExit(f"transformers found missing or unexpected keys: {wrong}")
    return theirs.eval()


def our_stages(model: ViT, images: Tensor) -> list[Tensor]:
    tokens, layout = model.embed(*model.patchify(images))
    layers = [after for _, after in model.encoder.walk(tokens, layout, model.position)]
    return [tokens, *layers, model.norm(layers[-1])]


def their_stages(model: Any, images: Tensor) -> list[Tensor]:
    found = model(images, output_hidden_states=True)
    return [*found.hidden_states, found.last_hidden_state]


@torch.inference_mode()
def compare(ours: ViT, theirs: Any, size: tuple[int, int], count: int) -> list[Result]:
    images = torch.randn(count, ours.config.channels, *size)
    names = ["embedded", *(f"layer {i + 1}" for i in range(ours.config.depth)), "features"]
    results = []
    for name, our, their in zip(names, our_stages(ours, images), their_stages(theirs, images), strict=True):
        off = (our - their).abs()
        largest = off.max().item()
        results.append(Result(size, name, largest, off.mean().item(), largest / their.abs().max().item()))
    return results


def main(options: Options) -> None:
    torch.manual_seed(0)
    ours = vitreous.load(options.checkpoint)
    assert isinstance(ours, ViT), f"{options.checkpoint} is not a ViT"
    theirs = exported(ours, options.attention)
    sizes = (ours.config.image_size, options.other)
    results = [result for size in sizes for result in compare(ours, theirs, size, options.images)]
    rows = [
        [f"{row.size[0]} x {row.size[1]}", row.stage, f"{row.largest:.1e}", f"{row.mean:.1e}", f"{row.share:.1e}"]
        for row in results
    ]
    setting = f"{options.checkpoint.name}, {options.images} images: difference from transformers ({options.attention})"
    publish(setting, ["size", "stage", "largest", "mean", "relative"], rows, results, options.out)
    if any(row.stage == "features" and row.largest > ALLOWED for row in results):
        raise SystemExit(f"the features differ by more than {ALLOWED:g}")


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
