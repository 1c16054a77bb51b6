"""The verb `vitreous eval`. torch is imported inside, so that `--help` answers at once."""

from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg


def evaluate(
    checkpoint: Annotated[Positional[Path], arg(metavar="CHECKPOINT")],
    *,
    data: str,
    part: Literal["train", "val", "test"] | None = None,
    image_size: Annotated[tuple[int, ...], arg(metavar="PIXELS | HEIGHT WIDTH")] = (),
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
    """How good a checkpoint is: top-1, calibration, what is taken for what; mean IoU and outlines for a segmenter.

    Example: vitreous eval runs/first/best --data pictures/

    Args:
        checkpoint: A folder with a model, such as runs/first/best, another system's file, or hf-hub:owner/name.
        data: What it is measured on; anything that `train --data` takes.
        part: Which part of it; the test part where there is one, else the validation part.
        image_size: Another size than the checkpoint's; its positions are resampled.
        data_root: A local copy of a data set that would be downloaded.
        val_fraction: Share held out where the data has no validation part, as in training.
        seed: Of that split, as in training; and of what a probe draws.
        batch_size: Pictures at once.
        device: auto, cpu, cuda, mps.
        precision: Of the computation.
        workers: Processes that decode pictures.
        flip: Average with the mirror image.
        decode: Of JPEGs: fast reads large ones at a reduced scale, which changes some answers. Only for classifiers.
        probe: Measure the frozen encoder instead of the head: what k-NN, a linear classifier, or least squares on a few
            pictures of each class learn from its features of the train part.
        features: For a probe: what the head gets, or the class token beside the mean of the patches.
        cache: For a probe: a folder to keep features in, for the next probe; left out, they are only in memory.
        neighbours: For --probe knn: how many vote; several numbers are measured in one pass, the first is the result.
        shots: For --probe fewshot: pictures of each class; the first number is the result. Left out: those of 5, 10 and
            25 that every class has.
        ignore: For a segmenter: classes whose pixels shall not count.
        json: Print JSON instead of tables.
        out: Write the JSON to a file as well.
    """
    from vitreous.cli.eval_command import Probing, evaluate_files
    from vitreous.evaluation.setting import Setting

    setting = Setting(
        part, image_size, data_root, val_fraction, seed, batch_size, device, precision, workers, flip, decode
    )
    probing = Probing(features, cache, neighbours, shots)
    evaluate_files(checkpoint, data, setting, probe, probing, ignore, json, out)
