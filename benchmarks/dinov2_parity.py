"""A DINOv2 checkpoint of Meta's, read by us and written for transformers: where the two differ, and by how much.

The file is loaded without a hint, saved in transformers' format, and loaded by its `AutoModel`, which must find no
name missing and none too many. Both then see the same random images, at the model's own size and at one that is not
square. Every stage is compared: the embedded tokens, the output of every layer, and the features after the last norm.

Before the norm single channels reach about a hundred, so differences are also given as a share of the largest number.

    python -m benchmarks.dinov2_parity dinov2_vits14_reg4_pretrain.pth --attention eager

`eager` is transformers' own arithmetic of attention; with `sdpa` it calls the same function of torch as we do. Seen
with ViT-S/14 with registers on a CPU, at both sizes: features that differ by 1.5e-5 at most with `eager`, and by
nothing at all with `sdpa`.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import tyro
from torch import Tensor

import vitreous
from benchmarks.peers import import_timm
from benchmarks.publish_table import publish
from vitreous.model.vit import ViT

ALLOWED = 1e-4  # of the features


@dataclass(frozen=True)
class Options:
    """What to compare."""

    checkpoint: tyro.conf.Positional[Path]
    other: tuple[int, int] = (224, 322)  # height and width
    images: int = 2
    attention: Literal["eager", "sdpa"] = "eager"  # how transformers computes it
    out: Path = Path("runs/bench/dinov2_parity.json")


@dataclass(frozen=True)
class Result:
    size: tuple[int, int]
    stage: str
    largest: float  # of all differences
    mean: float
    share: float  # the largest difference, relative to the largest number


def exported(ours: ViT, attention: str) -> Any:
    """The same model in transformers."""
    import_timm()  # transformers imports torchvision where it finds one
    from transformers import AutoModel

    with tempfile.TemporaryDirectory() as folder:
        vitreous.save(ours, Path(folder) / "model", format="huggingface")
        theirs, about = AutoModel.from_pretrained(
            Path(folder) / "model", output_loading_info=True, attn_implementation=attention
        )
    if wrong := {kind: names for kind, names in about.items() if names}:
        raise SystemExit(f"transformers does not load it strictly: {wrong}")
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
    for name, one, other in zip(names, our_stages(ours, images), their_stages(theirs, images), strict=True):
        off = (one - other).abs()
        largest = off.max().item()
        results.append(Result(size, name, largest, off.mean().item(), largest / other.abs().max().item()))
    return results


def main(options: Options) -> None:
    torch.manual_seed(0)
    ours = vitreous.load(options.checkpoint)
    assert isinstance(ours, ViT), f"{options.checkpoint} is not a ViT"
    theirs = exported(ours, options.attention)
    sizes = (ours.config.image_size, options.other)
    results = [result for size in sizes for result in compare(ours, theirs, size, options.images)]
    rows = [
        [f"{one.size[0]} x {one.size[1]}", one.stage, f"{one.largest:.1e}", f"{one.mean:.1e}", f"{one.share:.1e}"]
        for one in results
    ]
    setting = f"{options.checkpoint.name}, {options.images} images: ours and transformers' ({options.attention})"
    publish(setting, ["size", "stage", "largest", "mean", "largest / number"], rows, results, options.out)
    if any(one.stage == "features" and one.largest > ALLOWED for one in results):
        raise SystemExit(f"the features differ by more than {ALLOWED:g}")


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
