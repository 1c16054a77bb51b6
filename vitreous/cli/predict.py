"""The verb `vitreous predict`."""

from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from vitreous.cli.flags import ImageSize


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
    """What a model sees in pictures: labels, or a mask for each where the model is a segmenter.

    Example: vitreous predict runs/first/best cat.jpg "holiday/*.png"

    Args:
        checkpoint: A folder with a model, such as runs/first/best, another system's file, or hf-hub:owner/name.
        images: Files, folders, globs, or - to read paths from standard input.
        top: How many labels for each picture; 5 where left out.
        image_size: Another size than the checkpoint's; its positions are resampled.
        flip: Average with the mirror image.
        batch_size: Pictures at once.
        device: auto, cpu, cuda, mps.
        precision: Of the computation.
        decode: Of JPEGs: fast reads large ones at a reduced scale, which changes some answers.
        json: Print a line of JSON for each picture instead of a table.
        out: Write to a .json, .jsonl, .csv or .parquet file instead; for a segmenter, a folder for masks and overlays.
    """
    from vitreous.cli.predict_command import predict_files

    predict_files(checkpoint, images, image_size, top, flip, batch_size, device, precision, json, out, decode)
