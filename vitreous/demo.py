"""One image through one model, equation by equation, with the real shapes of the real tensors."""

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from vitreous.model.presets import create
from vitreous.model.vit import ViT


@torch.no_grad()
def run() -> None:
    """Build, forward, and say what each tensor is."""
    torch.manual_seed(0)
    model = create("ViT-Ti/16", num_classes=10)
    assert isinstance(model, ViT)
    images = draw_disc(224)
    console = Console()
    console.print(walk(model.eval(), images))

    maps = model.attention(images)
    rows = max(float((weights.sum(-1) - 1).abs().max()) for weights in maps)
    console.print(f"\nAttention: {len(maps)} layers of {tuple(maps[0].shape)}; rows sum to 1 within {rows:.0e}.")
    wide = draw_disc(224, 320)
    moved = float((model(wide) - model.resized((224, 320))(wide)).abs().max())
    console.print(f"At 224 x 320: resampling positions at every call or once for all, logits differ by {moved:.0e}.")
    console.print(
        "\nNext: [bold]vitreous info[/bold] lists the models, [bold]vitreous info ViT-B/16[/bold] describes one."
    )


def walk(model: ViT, images: Tensor) -> Table:
    """The steps of equations 1 to 4 as rows of a table."""
    patches, grid = model.patchify(images)
    tokens, layout = model.embed(patches, grid)
    features = model.encode(tokens, layout)
    pooled = model.pool(features)
    logits = model.classify(features)
    steps = [
        ("x", images, "the image: batch, channels, height, width"),
        ("x_p E", patches, f"a grid of {grid[0]} x {grid[1]} patches, each projected to width {patches.shape[-1]}"),
        ("z_0", tokens, "(1) the class token before them, the position added to all"),
        ("z_L", features.patches, f"(2, 3) the patches after {model.config.depth} blocks of attention and MLP, normed"),
        ("y", pooled, "(4) the class token after the last block, normed: the image"),
        ("logits", logits, "the head's score for each class"),
    ]
    table = Table("", "shape", "what it is", box=None, title="An image through a ViT-Ti/16", title_justify="left")
    for symbol, tensor, meaning in steps:
        table.add_row(symbol, " x ".join(map(str, tensor.shape)), meaning)
    return table


def draw_disc(height: int, width: int | None = None) -> Tensor:
    """A bright disc on a slope of grey, already scaled to [-1, 1]."""
    y, x = torch.meshgrid(torch.linspace(-1, 1, height), torch.linspace(-1, 1, width or height), indexing="ij")
    disc = (x**2 + y**2 < 0.25).float()
    return torch.stack([disc, x / 2, y / 2]).mul(2).clamp(-1, 1)[None]
