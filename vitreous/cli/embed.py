"""The `vitreous embed` command."""

from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from vitreous.cli import ImageSize


def embed(
    checkpoint: Annotated[Positional[Path], arg(metavar="CHECKPOINT")],
    images: Annotated[Positional[tuple[str, ...]], arg(metavar="IMAGES...")],
    *,
    out: Path,
    image_size: ImageSize = (),
    flip: bool = False,
    batch_size: int = 32,
    device: str = "auto",
    precision: Literal["fp32", "bf16", "auto"] = "fp32",
    decode: Literal["exact", "fast"] = "exact",
) -> None:
    """Compute an embedding of each image (the pooled features before the head) for search, clustering or training.

    Example: vitreous embed runs/first/best pictures/ --out vectors.parquet

    Args:
        checkpoint: Checkpoint folder such as runs/first/best, weight file from another library, catalog name such as
            dinov2-s, or hf-hub:owner/name.
        images: Image files, folders or globs, or `-` to read paths from standard input.
        out: Output file: .parquet, .jsonl, .json or .csv.
        image_size: Input size, by default that of the checkpoint. Position embeddings are resampled.
        flip: Average the embeddings of each image and its mirror image.
        batch_size: Images per batch.
        device: auto, cpu, cuda or mps.
        precision: Compute precision.
        decode: JPEG decoding. `fast` decodes large JPEGs at a reduced scale, which changes some embeddings slightly.
    """
    options = {name: value for name, value in locals().items() if name not in ("checkpoint", "images", "out")}
    from vitreous.cli.prediction_output import output_results
    from vitreous.inference import predict_images
    from vitreous.inference.prediction_files import writer_for

    writer_for(out)  # reject an unsupported suffix first
    output_results(predict_images.embed(checkpoint, images, **options), False, out)
