"""CIFAR-10 without labels first: MAE and the paper's masked patch prediction, beside the same model from scratch.

A ViT-Lite-7/4 (3.7 million weights) learns from the 50,000 training pictures by filling in what was hidden of them, in
four ways: as MAE does, and as the paper's appendix B.1.2 does with each of the three targets that it tried (the mean
colour of a patch in 3 bits a channel, the colours of its 4 x 4 parts, all of its pixels in L2). What each has learned
is then fine-tuned with the labels, for equally many epochs and with equal settings. From scratch the same is done
twice: with the very same settings, and without layer decay, which only helps layers that know something already.

Nothing is chosen on the test pictures: a run is measured once, after its last epoch.

Command:  python -m recipes.masked_cifar10 --data-root DIR     (DIR holds cifar10.npz; left out, the data is downloaded)
Result:   top-1 of the 10,000 test pictures after 60 epochs of filling in and 20 with labels:

              from scratch                    63.80 %      MPP, mean colour        82.82 %
              from scratch, no layer decay    72.18 %      MPP, 4 x 4 colours      84.55 %
              MAE                             84.73 %      MPP, pixels             79.00 %

Cost:     9.5 minutes on one NVIDIA H200, with all six ways side by side in processes of their own

Every stage is a run folder like any other, with its report. One that is finished is not repeated and one that was
stopped goes on, so the command can be given again until its table is there.
"""

import dataclasses
import json
import math
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from vitreous.training.config import Augment, Masking, Optim, TrainConfig

PARTS = ('pool={"kind": "GlobalAverage"}', "class_token=false")  # filling in teaches patches, and no class token
CROP = Augment(crop="padded", flip=0.5, policy="none", mixup=0.0, cutmix=0.0)


@dataclass(frozen=True)
class Options:
    """How large the comparison is."""

    data: str = "cifar10"
    """The name, or an .npz with its pictures."""
    data_root: Path | None = None
    """Where a local copy lies."""
    out: Path = Path("runs/masked_cifar10")
    """A folder for each run, and results.json."""
    model: str = "ViT-Lite-7/4"
    set: tuple[str, ...] = ()
    """Other parts for the model, as field=JSON."""
    epochs: int = 60
    """Of filling in."""
    finetune_epochs: int = 20
    """With labels."""
    batch_size: int = 1024
    """Of filling in; fine-tuning takes half of it, and so twice the steps."""
    device: str = "auto"
    compile: bool = False
    """Worth its minute, for each run, from several hundred epochs on."""
    seed: int = 0


@dataclass(frozen=True)
class Way:
    """One way to come by the weights that fine-tuning starts from."""

    name: str
    folder: str
    task: Literal["mae", "mpp"] | None = None  # None: from scratch
    target: Literal["colour", "colours", "pixels"] = "colour"
    layer_decay: float = 0.75


WAYS = (
    Way("from scratch", "scratch"),
    Way("from scratch, no layer decay", "scratch-even", layer_decay=1.0),
    Way("MAE", "mae", "mae"),
    Way("MPP, mean colour", "mpp-colour", "mpp", "colour"),
    Way("MPP, 4 x 4 colours", "mpp-colours", "mpp", "colours"),
    Way("MPP, pixels", "mpp-pixels", "mpp", "pixels"),
)


@dataclass(frozen=True)
class Result:
    pretraining: str
    epochs: int
    seconds: float  # of pre-training
    finetune_epochs: int
    finetune_seconds: float
    top1: float


def fresh(options: Options) -> TrainConfig:
    """What all runs from random weights have in common."""
    return TrainConfig(
        data=options.data,
        data_root=options.data_root,
        model=options.model,
        set=(*PARTS, *options.set),
        image_size=(32,),
        device=options.device,
        compile=options.compile,
        seed=options.seed,
        augment=CROP,
        save_minutes=1.0,
    )


def pretraining(way: Way, options: Options) -> TrainConfig:
    assert way.task is not None
    return dataclasses.replace(
        fresh(options),
        task=way.task,
        masking=Masking(mpp_target=way.target),
        epochs=options.epochs,
        evaluate_every=options.epochs,
        batch_size=options.batch_size,
        optim=Optim(lr=rate(1.5e-3, options.batch_size, 1024), weight_decay=0.05, betas=(0.9, 0.95), warmup=0.1),
        out=options.out / way.folder,
    )


def finetuning(way: Way, options: Options) -> TrainConfig:
    config, size = fresh(options), options.batch_size // 2
    if way.task is not None:
        init = options.out / way.folder / "best"
        config = dataclasses.replace(config, init=init, model=None, set=(), image_size=())
    return dataclasses.replace(
        config,
        epochs=options.finetune_epochs,
        evaluate_every=options.finetune_epochs,
        batch_size=size,
        optim=Optim(lr=rate(1e-3, size, 512), weight_decay=0.05, warmup=0.1, layer_decay=way.layer_decay),
        out=options.out / (f"{way.folder}-finetuned" if way.task is not None else way.folder),
    )


def rate(lr: float, batch_size: int, usual: int) -> float:
    """A learning rate for another size of the batch than the usual, with its root."""
    return float(f"{lr * math.sqrt(batch_size / usual):.3g}")


def finished(config: TrainConfig) -> dict[str, Any]:
    """The figures of a run: made now, gone on with, or read where it was finished before with the same settings."""
    from vitreous.training.run import stored, train

    folder = config.out
    assert folder is not None
    if (folder / "config.json").exists():
        config = dataclasses.replace(config, resume=True)
        stored(config)  # or says what is different
    if (folder / "metrics.json").exists():
        return dict(json.loads((folder / "metrics.json").read_text()))
    print(f"\n== {folder}", flush=True)
    return train(config, shlex.join(["python", *sys.argv]))


def compare(way: Way, options: Options) -> Result:
    learned = {} if way.task is None else finished(pretraining(way, options))
    tuned = finished(finetuning(way, options))
    return Result(
        way.name,
        learned.get("epochs", 0),
        learned.get("seconds", 0.0),
        tuned["epochs"],
        tuned["seconds"],
        tuned["top1"],
    )


def main(options: Options) -> list[Result]:
    from benchmarks.table import publish

    results = [compare(way, options) for way in WAYS]
    rows = [
        [one.pretraining, str(one.epochs), f"{one.seconds:.0f}", str(one.finetune_epochs),
         f"{one.finetune_seconds:.0f}", f"{one.top1:.2%}"]
        for one in results
    ]  # fmt: skip
    columns = ["pre-training", "epochs", "s", "fine-tuning epochs", "s", "top-1"]
    publish(f"{options.model} on {options.data}", columns, rows, results, options.out / "results.json")
    return results


if __name__ == "__main__":
    from vitreous.cli.errors import refuse
    from vitreous.training.monitor import Interrupted

    try:
        main(tyro.cli(Options, description=__doc__))
    except Interrupted as stop:
        print(f"{stop}; so does this command", file=sys.stderr)
        sys.exit(128 + stop.signal_number)
    except (ValueError, OSError) as error:
        refuse(error)
