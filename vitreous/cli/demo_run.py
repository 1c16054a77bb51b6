"""`vitreous demo`: the whole way on the embedded digits, and one image through the model, equation by equation."""

import shutil
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from rich.table import Table
from torch import Tensor

from vitreous.common.text import SafeConsole
from vitreous.data.open import open_data
from vitreous.explanation.command import explain_files
from vitreous.model.vit import ViT
from vitreous.training.config import Augment, Optim, TrainConfig
from vitreous.training.defaults import FEW_PICTURES
from vitreous.training.run import train
from vitreous.weights.load import load

FOLDER = Path("runs/demo")


def config(out: Path = FOLDER) -> TrainConfig:
    """A small ViT on 8 x 8 pictures, cut into patches of 2 x 2.

    Position by a convolution and the mean of the patches: with so few pictures they learn more than the paper's choice.
    """
    return TrainConfig(
        data="digits",
        model="ViT-Lite-6/4",
        set=("patch_size=2", "width=128", "mlp_width=256", "channels=1", *FEW_PICTURES),
        image_size=(8,),
        out=out,
        epochs=45,
        batch_size=64,
        workers=0,
        evaluate_every=5,
        optim=Optim(lr=1.5e-3, ema=0.995),
        augment=Augment(crop="padded", policy="none", mixup=0.2),
    )


def run(out: Path = FOLDER) -> None:
    """Train, evaluate, report, show what happens inside, and explain one answer."""
    if (out / "config.json").exists():
        shutil.rmtree(out)  # the demo's own folder, made anew each time
    train(config(out), command=" ".join(["vitreous", *sys.argv[1:]]))
    model = load(out / "best")
    assert isinstance(model, ViT)
    digit = open_data("digits").val.image(0)
    assert isinstance(digit, np.ndarray)
    images = (torch.from_numpy(digit).reshape(1, 1, 8, 8).float() / 255 - 0.5) / 0.5
    console = SafeConsole()
    console.print()
    console.print(walk(model, images))
    console.print("\nWhat its answer rests on:")
    Image.fromarray(digit[..., 0]).save(out / "digit.png")
    explain_files(out / "best", str(out / "digit.png"), out / "explained")


@torch.no_grad()
def walk(model: ViT, images: Tensor) -> Table:
    """The steps of equations 1 to 4 as rows of a table."""
    patches, grid = model.patchify(images)
    tokens, layout = model.embed(patches, grid)
    features = model.encode(tokens, layout)
    maps = model.attention(images)
    pooled, logits = model.pool(features), model.classify(features)
    steps = [
        ("x", images, "the image: batch, channels, height, width"),
        ("x_p E", patches, f"{grid[0]} x {grid[1]} patches, each projected to width {patches.shape[-1]}"),
        ("z_0", tokens, "(1) the tokens that go into the encoder"),
        ("A", maps[0], f"(2) what each token takes from each, for every head; {len(maps)} layers of it"),
        ("z_L", features.patches, f"(3) the patches after {model.config.depth} blocks, normed"),
        ("y", pooled, "(4) their mean: the image"),
        ("logits", logits, "the head's score for each class"),
    ]
    table = Table("", "shape", "what it is", box=None, title="One digit through the model", title_justify="left")
    for symbol, tensor, meaning in steps:
        table.add_row(symbol, " x ".join(map(str, tensor.shape)), meaning)
    return table
