"""The `vitreous demo` command: train on the built-in digits and show one image passing through the model."""

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

from rich.table import Table

from vitreous.cli.train import run_flags
from vitreous.model.options import Conditional, GlobalAverage
from vitreous.training import Augment, Optim, TrainConfig

if TYPE_CHECKING:
    from torch import Tensor

    from vitreous.model.vit import ViT

FOLDER = Path("runs/demo")


def config(out: Path = FOLDER) -> TrainConfig:
    """Return the training config of a small ViT for a small data set of 8 x 8 images."""
    return TrainConfig(
        data="digits:",  # the built-in data set, even if there is a folder with this name
        model="ViT-Lite-6/4",
        overrides={
            "patch_size": (2, 2), "width": 128, "mlp_width": 256, "channels": 1,
            "position": Conditional(), "pool": GlobalAverage(), "class_token": False,
        },
        image_size=(8,),
        out=out,
        epochs=45,
        batch_size=64,
        workers=0,
        evaluate_every=5,
        optim=Optim(lr=1.5e-3, ema=0.995),
        augment=Augment(crop="padded", policy="none", mixup=0.2),
    )  # fmt: skip


def demo() -> None:
    """Train, evaluate and explain a small model on handwritten digits. This takes about a minute on a laptop.

    Example: vitreous demo
    """
    import numpy as np
    import torch
    from PIL import Image

    from vitreous.cli.explain import explain
    from vitreous.common.text import SafeConsole
    from vitreous.data.open import open_data

    out = FOLDER
    if (out / "config.json").exists():
        shutil.rmtree(out)  # left by an earlier demo
    model = cast("ViT", run_flags(config(out), " ".join(["vitreous", *sys.argv[1:]])).model)
    digit = open_data("digits:").val.image(0)
    assert isinstance(digit, np.ndarray)
    images = (torch.from_numpy(digit).reshape(1, 1, 8, 8).float() / 255 - 0.5) / 0.5
    console = SafeConsole()
    console.print()
    console.print(steps_table(model, images))
    console.print("\nExplanation of the prediction:")
    Image.fromarray(digit[..., 0]).save(out / "digit.png")
    explain(out / "best", str(out / "digit.png"), out=out / "explained")


def steps_table(model: "ViT", images: "Tensor") -> Table:
    """Return a table of the tensors in equations 1 to 4 of the ViT paper."""
    import torch

    with torch.no_grad():
        patches, grid = model.patchify(images)
        tokens, layout = model.embed(patches, grid)
        features = model.encode(tokens, layout)
        maps = model.attention(images)
        pooled, logits = model.pool_features(features), model.classify(features)
    steps = [
        ("x", images, "the image: batch, channels, height, width"),
        ("x_p E", patches, f"{grid[0]} x {grid[1]} patches, each projected to width {patches.shape[-1]}"),
        ("z_0", tokens, "(1) the input tokens of the encoder"),
        ("A", maps[0], f"(2) attention between tokens in each head of layer 1 of {len(maps)}"),
        ("z_L", features.patches, f"(3) the patch tokens after {model.config.depth} blocks and the final norm"),
        ("y", pooled, "(4) the mean of the patch tokens, which represents the image"),
        ("logits", logits, "the class scores"),
    ]
    table = Table("", "shape", "meaning", box=None, title="Path of one digit through the model", title_justify="left")
    for symbol, tensor, meaning in steps:
        table.add_row(symbol, " x ".join(map(str, tensor.shape)), meaning)
    return table
