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
    precision: Literal["fp32", "bf16", "fp8", "int8", "auto"] = "fp32",
    decode: Literal["exact", "fast"] = "exact",
    merge_tokens: int = 0,
    engine: Literal["local", "ray"] = "local",
    workers: int | None = None,
    worker_cpus: int | None = None,
    worker_gpus: float | None = None,
    shard_size: int | None = None,
) -> None:
    """Compute an embedding of each image (the pooled features before the head) for search, clustering or training.

    Example: vitreous embed runs/first/best pictures/ --out vectors.parquet

    Args:
        checkpoint: Checkpoint folder such as runs/first/best, weight file from another library, catalog name such as
            dinov2-s, or hf-hub:owner/name.
        images: Image files, folders, tar files, Parquet files with images, tables of paths, or globs, or `-` to read
            paths from standard input.
        out: Output file (.parquet, .jsonl, .json or .csv), or output folder for one Parquet file per shard, which an
            aborted run can continue.
        image_size: Input size, by default that of the checkpoint. Position embeddings are resampled.
        flip: Average the embeddings of each image and its mirror image.
        batch_size: Images per batch.
        device: auto, cpu, cuda or mps.
        precision: Compute precision. fp8 needs a ViT and a GPU such as an H100 or RTX 4090; the first 32 images
            determine the scales, and batches before the 32nd image are computed in bf16. int8 is for CPUs and
            checkpoints with int8 scales; see `vitreous quantise`.
        decode: JPEG decoding. `fast` decodes large JPEGs at a reduced scale, which changes some embeddings slightly.
        merge_tokens: Number of pairs of patches that every block of a ViT merges (ToMe): faster, but changes results.
        engine: `ray` computes on a Ray cluster: the one at RAY_ADDRESS or on this machine, or else a new one here.
        workers: Processes on the Ray cluster, by default as many as fit.
        worker_cpus: CPU cores per process, by default 1 or, with a GPU, the cores that the machine has for it.
        worker_gpus: GPUs per process, by default 1 if the machines have GPUs. With 0.5, two processes share a GPU.
        shard_size: Images per file in an output folder, by default 1/64 of the images, from 64 to 10,000.
    """
    output = ("checkpoint", "images", "out", "shard_size")
    options = {name: value for name, value in locals().items() if name not in (*output, "output")}
    from vitreous.cli.prediction_output import check_shard_size, is_folder, output_results
    from vitreous.cluster import run_inference
    from vitreous.inference.prediction_files import writer_for

    check_shard_size(shard_size, out)
    if not is_folder(out):
        writer_for(out)  # reject an unsupported suffix first
    output_results(run_inference.embed(checkpoint, images, **options), False, out, shard_size)
