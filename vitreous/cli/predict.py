"""The verb `vitreous predict`."""

from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

import vitreous
from vitreous.cli import ImageSize


def predict(
    checkpoint: Annotated[Positional[Path], arg(metavar="CHECKPOINT")],
    images: Annotated[Positional[tuple[str, ...]], arg(metavar="IMAGES...")],
    *,
    top: int | None = None,
    image_size: ImageSize = (),
    flip: bool = False,
    batch_size: int = 32,
    device: str = "auto",
    precision: Literal["fp32", "bf16", "auto"] = "fp32",
    decode: Literal["exact", "fast"] = "exact",
    json: bool = False,
    out: Path | None = None,
) -> None:
    """Predict labels for images, or a mask for each if the model is a segmenter.

    Example: vitreous predict runs/first/best cat.jpg "holiday/*.png"

    Args:
        checkpoint: A folder with a model, such as runs/first/best, another system's file, or hf-hub:owner/name.
        images: Files, folders, globs, or - to read paths from standard input.
        top: Labels per image; default 5.
        image_size: Another size than the checkpoint's; its positions are resampled.
        flip: Average with the mirror image.
        batch_size: Images per batch.
        device: auto, cpu, cuda, mps.
        precision: Of the computation.
        decode: Of JPEGs: fast decodes large ones at a reduced scale, which changes some results.
        json: Print a line of JSON for each image instead of a table.
        out: Write to a .json, .jsonl, .csv or .parquet file instead; for a segmenter, a folder for masks and overlays.
    """
    options = {name: value for name, value in locals().items() if name not in ("checkpoint", "images", "json", "out")}
    from vitreous.cli.prediction_output import output_predictions

    output_predictions(vitreous.predict(checkpoint, images, **options), json, out)
