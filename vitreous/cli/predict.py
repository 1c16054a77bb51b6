"""The `vitreous predict` command."""

from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from vitreous.cli import ImageSize


def predict(
    checkpoint: Annotated[Positional[Path], arg(metavar="CHECKPOINT")],
    images: Annotated[Positional[tuple[str, ...]], arg(metavar="IMAGES...")],
    *,
    top: int | None = None,
    coverage: float | None = None,
    image_size: ImageSize = (),
    flip: bool = False,
    batch_size: int = 32,
    device: str = "auto",
    precision: Literal["fp32", "bf16", "fp8", "int8", "auto"] = "fp32",
    decode: Literal["exact", "fast"] = "exact",
    merge_tokens: int = 0,
    engine: Literal["local", "ray"] = "local",
    workers: int | None = None,
    worker_cpus: int | None = None,
    worker_gpus: float | None = None,
    shard_size: int | None = None,
    json: bool = False,
    out: Path | None = None,
) -> None:
    """Predict labels for images, numbers if the model is a regression model, or masks if it is a segmenter.

    Example: vitreous predict runs/first/best cat.jpg "holiday/*.png"

    Args:
        checkpoint: Checkpoint folder such as runs/first/best, weight file from another library, catalog name such as
            dinov2-s, or hf-hub:owner/name.
        images: Image files, folders, tar files, Parquet files with images, tables of paths, or globs, or `-` to read
            paths from standard input.
        top: Number of labels per image; 5 by default. A multi-label classifier also reports all labels that reach their
            thresholds.
        coverage: Also report a set of labels that contains the true label with this probability, e.g. 0.9. This needs
            a calibrated checkpoint (see `vitreous calibrate`).
        image_size: Input size, by default that of the checkpoint. Position embeddings are resampled.
        flip: Average the predictions for each image and its mirror image.
        batch_size: Images per batch.
        device: auto, cpu, cuda or mps.
        precision: Compute precision. fp8 needs a ViT and a GPU such as an H100 or RTX 4090; the first 32 images
            determine the scales, and batches before the 32nd image are computed in bf16. int8 is for CPUs and
            checkpoints with int8 scales; see `vitreous quantise`.
        decode: JPEG decoding. `fast` decodes large JPEGs at a reduced scale, which changes some results slightly.
        merge_tokens: Number of pairs of patches that every block of a ViT merges (ToMe): faster, but changes results.
        engine: `ray` computes on a Ray cluster: the one at RAY_ADDRESS or on this machine, or else a new one here.
        workers: Processes on the Ray cluster, by default as many as fit.
        worker_cpus: CPU cores per process, by default 1 or, with a GPU, the cores that the machine has for it.
        worker_gpus: GPUs per process, by default 1 if the machines have GPUs. With 0.5, two processes share a GPU.
        shard_size: Images per file in an output folder, by default 1/64 of the images, from 64 to 10,000.
        json: Print one line of JSON per image instead of a table.
        out: Output file (.json, .jsonl, .csv or .parquet), or output folder: for masks and overlays of a segmenter,
            otherwise for one Parquet file per shard, which an aborted run can continue.
    """
    output = ("checkpoint", "images", "json", "out", "shard_size")
    options = {name: value for name, value in locals().items() if name not in (*output, "output")}
    from vitreous.cli.prediction_output import check_shard_size, output_results
    from vitreous.cluster import run_inference

    check_shard_size(shard_size, out)
    output_results(run_inference.predict(checkpoint, images, **options), json, out, shard_size)
