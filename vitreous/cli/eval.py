"""The verb `vitreous eval`. torch is imported inside, so that `--help` answers at once."""

from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

import vitreous
from vitreous.cli import ImageSize


def evaluate(
    checkpoint: Annotated[Positional[Path], arg(metavar="CHECKPOINT")],
    *,
    data: str,
    split: Literal["train", "val", "test"] | None = None,
    image_size: ImageSize = (),
    data_root: Path | None = None,
    val_fraction: float = 0.2,
    seed: int = 0,
    batch_size: int = 64,
    device: str = "auto",
    precision: Literal["fp32", "bf16", "auto"] = "fp32",
    workers: int = 2,
    flip: bool = False,
    decode: Literal["exact", "fast"] = "exact",
    probe: Literal["knn", "linear", "fewshot"] | None = None,
    features: Literal["pooled", "class+mean"] = "pooled",
    cache: Path | None = None,
    neighbours: tuple[int, ...] = (20,),
    shots: tuple[int, ...] = (),
    ignore: tuple[str, ...] = (),
    json: bool = False,
    out: Path | None = None,
) -> None:
    """Evaluate a checkpoint: accuracy, calibration and confusions; mean IoU and outlines for a segmenter.

    Example: vitreous eval runs/first/best --data pictures/

    Args:
        checkpoint: A folder with a model, such as runs/first/best, another system's file, or hf-hub:owner/name.
        data: The data set; anything that `train --data` takes.
        split: Default: the test split if there is one, else the validation split.
        image_size: Another size than the checkpoint's; its positions are resampled.
        data_root: A local copy of a data set that would be downloaded.
        val_fraction: Fraction held out if the data has no validation split, as in training.
        seed: Of that split, as in training; and of a probe's draws.
        batch_size: Images per batch.
        device: auto, cpu, cuda, mps.
        precision: Of the computation.
        workers: Threads that decode images.
        flip: Average with the mirror image.
        decode: Of JPEGs: fast decodes large ones at a reduced scale, which changes some results. Only for classifiers.
        probe: Evaluate the frozen encoder instead of the head: train k-NN, a linear classifier, or least squares on a
            few images per class on its features of the train split.
        features: For a probe: the input of the head, or the class token concatenated with the mean of the patches.
        cache: For a probe: a folder that stores features for the next one. Default: features stay in memory.
        neighbours: For --probe knn: neighbours that vote; several numbers are measured in one pass, the first is the
            result.
        shots: For --probe fewshot: images per class; the first number is the result. Default: those of 5, 10 and 25
            that every class has.
        ignore: For a segmenter: classes whose pixels are excluded.
        json: Print JSON instead of tables.
        out: Write the JSON to a file as well.
    """
    options = {name: value for name, value in locals().items() if name not in ("checkpoint", "json", "out")}
    metrics = vitreous.evaluate(checkpoint, **options)
    from vitreous.cli.metrics_tables import print_metrics

    print_metrics(metrics, json, out)
