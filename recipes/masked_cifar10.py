"""Self-supervised pre-training on CIFAR-10: MAE and masked patch prediction compared with training from scratch.

A ViT-Lite-7/4 (3.7 million parameters) is pre-trained on the 50,000 training images in four ways: with MAE, and with
each target of masked patch prediction in appendix B.1.2 of the paper (the mean 3-bit colour of a patch, the colours of
its 4 x 4 cells, and L2 regression of all pixels). Each model is then fine-tuned with the same settings and number of
epochs. Two models are trained from scratch: with the same settings, and without layer decay, which only helps
pre-trained layers.

Each run is evaluated once, after the last epoch, so nothing is selected on the test images.

Command:  python -m recipes.masked_cifar10 --data-root DIR   (DIR contains cifar10.npz; if omitted, it is downloaded)
Result:   top-1 on the 10,000 test images after 60 epochs of pre-training and 20 epochs of fine-tuning:

              from scratch                    63.80 %      MPP, mean colour        82.82 %
              from scratch, no layer decay    72.18 %      MPP, 4 x 4 colours      84.55 %
              MAE                             84.73 %      MPP, pixels             79.00 %

Cost:     9.5 minutes on one NVIDIA H200, with all six methods in parallel processes

Each stage has its own run folder and report. If the command is repeated, it skips finished stages and resumes
interrupted ones.
"""

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from recipes.finished_run import finished
from vitreous.common.codec import parse_fields
from vitreous.model.options import GlobalAverage
from vitreous.training import Augment, Masking, Optim, TrainConfig

OVERRIDES = {"pool": GlobalAverage(), "class_token": False}  # predicting patches does not train a class token
CROP = Augment(crop="padded", flip=0.5, policy="none", mixup=0.0, cutmix=0.0)


@dataclass(frozen=True)
class Options:
    """Options of the comparison."""

    data: str = "cifar10"
    """Data set name, or an .npz file with the images."""
    data_root: Path | None = None
    """Folder with a local copy of the data."""
    out: Path = Path("runs/masked_cifar10")
    """Output folder for all runs and results.json."""
    model: str = "ViT-Lite-7/4"
    set: tuple[str, ...] = ()
    """Model config overrides, as field=JSON."""
    epochs: int = 60
    """Number of pre-training epochs."""
    finetune_epochs: int = 20
    """Number of fine-tuning epochs."""
    batch_size: int = 1024
    """Batch size for pre-training; fine-tuning uses half of it."""
    device: str = "auto"
    compile: bool = False
    """Use torch.compile, which takes a minute per run and is worth it only for several hundred epochs."""
    seed: int = 0


@dataclass(frozen=True)
class Method:
    """Pre-training method and fine-tuning settings."""

    name: str
    folder: str
    task: Literal["mae", "mpp"] | None = None  # None: from scratch
    target: Literal["colour", "colours", "pixels"] = "colour"
    layer_decay: float = 0.75


METHODS = (
    Method("from scratch", "scratch"),
    Method("from scratch, no layer decay", "scratch-even", layer_decay=1.0),
    Method("MAE", "mae", "mae"),
    Method("MPP, mean colour", "mpp-colour", "mpp", "colour"),
    Method("MPP, 4 x 4 colours", "mpp-colours", "mpp", "colours"),
    Method("MPP, pixels", "mpp-pixels", "mpp", "pixels"),
)


@dataclass(frozen=True)
class Result:
    pretraining: str
    epochs: int
    seconds: float  # for pre-training
    finetune_epochs: int
    finetune_seconds: float
    top1: float


def fresh(options: Options) -> TrainConfig:
    """Return the settings that all runs share."""
    return TrainConfig(
        data=options.data,
        data_root=options.data_root,
        model=options.model,
        overrides=OVERRIDES | parse_fields(options.set),
        image_size=(32,),
        device=options.device,
        compile=options.compile,
        seed=options.seed,
        augment=CROP,
        save_minutes=1.0,
    )


def pretraining(method: Method, options: Options) -> TrainConfig:
    assert method.task is not None
    return dataclasses.replace(
        fresh(options),
        task=method.task,
        masking=Masking(mpp_target=method.target),
        epochs=options.epochs,
        evaluate_every=options.epochs,
        batch_size=options.batch_size,
        optim=Optim(lr=rate(1.5e-3, options.batch_size, 1024), weight_decay=0.05, betas=(0.9, 0.95), warmup=0.1),
        out=options.out / method.folder,
    )


def finetuning(method: Method, options: Options) -> TrainConfig:
    config, size = fresh(options), options.batch_size // 2
    if method.task is not None:
        init = options.out / method.folder / "best"
        config = dataclasses.replace(config, init=init, model=None, overrides={}, image_size=())
    return dataclasses.replace(
        config,
        epochs=options.finetune_epochs,
        evaluate_every=options.finetune_epochs,
        batch_size=size,
        optim=Optim(lr=rate(1e-3, size, 512), weight_decay=0.05, warmup=0.1, layer_decay=method.layer_decay),
        out=options.out / (f"{method.folder}-finetuned" if method.task is not None else method.folder),
    )


def rate(lr: float, batch_size: int, usual: int) -> float:
    """Scale a learning rate with the square root of the batch size."""
    return float(f"{lr * math.sqrt(batch_size / usual):.3g}")


def compare(method: Method, options: Options) -> Result:
    pretrained = {} if method.task is None else finished(pretraining(method, options))
    tuned = finished(finetuning(method, options))
    return Result(
        method.name,
        pretrained.get("epochs", 0),
        pretrained.get("seconds", 0.0),
        tuned["epochs"],
        tuned["seconds"],
        tuned["top1"],
    )


def main(options: Options) -> list[Result]:
    from benchmarks.publish_table import publish

    results = [compare(method, options) for method in METHODS]
    rows = [
        [row.pretraining, str(row.epochs), f"{row.seconds:.0f}", str(row.finetune_epochs),
         f"{row.finetune_seconds:.0f}", f"{row.top1:.2%}"]
        for row in results
    ]  # fmt: skip
    columns = ["pre-training", "epochs", "s", "fine-tuning epochs", "s", "top-1"]
    publish(f"{options.model} on {options.data}", columns, rows, results, options.out / "results.json")
    return results


if __name__ == "__main__":
    from vitreous.cli.main import run_recipes

    run_recipes(lambda: main(tyro.cli(Options, description=__doc__)))
