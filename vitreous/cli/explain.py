"""The verb `vitreous explain`. torch is imported inside, so that `--help` answers at once."""

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from vitreous.explanation.methods import Method


def explain(
    checkpoint: Annotated[Positional[Path], arg(metavar="CHECKPOINT")],
    image: Annotated[Positional[str], arg(metavar="IMAGE|none")],
    *,
    out: Path,
    class_: Annotated[str | None, arg(name="class", metavar="LABEL|INDEX")] = None,
    methods: tuple[Method, ...] = (),
    layers: Annotated[tuple[int, ...], arg(metavar="LAYER ...")] = (),
    heads: Annotated[tuple[int, ...], arg(metavar="HEAD ...")] = (),
    query: Annotated[tuple[int, ...], arg(metavar="ROW COLUMN")] = (),
    image_size: Annotated[tuple[int, ...], arg(metavar="PIXELS | HEIGHT WIDTH")] = (),
    batch_size: int = 32,
    device: str = "auto",
) -> None:
    """What a model sees in a picture and what its answer rests on, as pictures and one report.html.

    Example: vitreous explain runs/first/best cat.jpg --out explained/

    Args:
        checkpoint: A folder with a model, such as runs/first/best, another system's file, or hf-hub:owner/name.
        image: A picture, or none for the figures that need none: positions and filters.
        out: A folder for the figures.
        class_: The class to explain, by its label or number; left out, the likeliest.
        methods: Which figures; left out, all that the checkpoint allows. occlusion and faithfulness take longest.
        layers: Which layers, from 0, or negative from the end; left out, all.
        heads: Which heads in the overview of heads, from 0; left out, all.
        query: The patch whose attention and likeness is shown; left out, the class token's and the most important's.
        image_size: Another size than the checkpoint's; its positions are resampled.
        batch_size: Pictures at once, for occlusion and faithfulness.
        device: auto, cpu, cuda, mps.
    """
    from vitreous.explanation.command import explain_files

    explain_files(
        checkpoint, image, out, class_, layers, heads, query, methods, image_size, batch_size, device
    )  # fmt: skip
