"""Distillation without labels: DINOv2-S into a ViT-Ti/16 on unlabelled images of Pets and CIFAR-10.

The training images of both data sets are written to one folder, without their labels. The student is trained from
random weights to predict the features of the teacher. The test images are used only for the probes: k-NN, linear and
few-shot probes of the student before and after training, and of the teacher, all at the same image size.

Pets has few images of similar classes, so each of them is in the folder several times (--pets-copies), with another
augmentation of every copy.

Command:  python -m recipes.distil_pets_cifar --pets PETS --cifar10 cifar10.npz --teacher dinov2s_reg4.pt
          (PETS contains train/BREED/... and test/BREED/...; without --teacher, the published DINOv2-S is downloaded)
Result:   not measured yet
Cost:     not measured yet

If the command is repeated, it resumes an interrupted training run and skips a finished one.
"""

from dataclasses import dataclass
from pathlib import Path

import tyro
from PIL import Image

from benchmarks.publish_table import publish
from recipes.finished_run import finished
from recipes.probes import Options as ProbeOptions
from recipes.probes import Row, control, probe, table
from vitreous.cli.main import run_recipes
from vitreous.common.atomic_files import atomic_folder
from vitreous.data.open import open_data
from vitreous.training import Augment, Distillation, Optim, TrainConfig
from vitreous.weights.load import load_encoder


@dataclass(frozen=True)
class Options:
    """Options of the comparison."""

    pets: str = "pets"
    """Data set of pets, or a folder with train/BREED/... and test/BREED/..."""
    cifar10: str = "cifar10"
    """Data set name, or an .npz file with the images."""
    data_root: Path | None = None
    """Folder with local copies of named data sets."""
    teacher: str = "dinov2-s"
    model: str = "ViT-Ti/16"
    image_size: int = 224
    """Image size of the student and the teacher."""
    pets_copies: int = 4
    epochs: float = 40
    batch_size: int = 512
    lr: float = 7e-3
    """Learning rate of Muon."""
    mixup: float = 0.0
    """Alpha of mixup, which the teacher also sees."""
    device: str = "auto"
    workers: int = 8
    seed: int = 0
    out: Path = Path("runs/distil_pets_cifar")
    """Output folder for the images, the run and results.json."""


@dataclass(frozen=True)
class Result:
    """Probes of the random student, the trained student and the teacher, and the cost of the training."""

    probes: list[Row]
    epochs: int
    seconds: float  # of the training run, including set-up and report
    images_per_second: float


def write_images(options: Options) -> Path:
    """Write the training images of both data sets to one folder without labels. Images that exist are kept."""
    folder = options.out / "images"
    if folder.exists():
        return folder
    with atomic_folder(folder) as aside:
        for name, data, copies in (("pets", options.pets, options.pets_copies), ("cifar10", options.cifar10, 1)):
            source = open_data(data, root=options.data_root, seed=options.seed).train
            (aside / name).mkdir()
            for index in range(len(source)):
                stored = source.image(index)
                suffix = Path(source.name(index)).suffix if isinstance(stored, bytes) else ".png"
                for copy in range(copies):
                    file = aside / name / f"{index:05}-{copy}{suffix}"
                    if isinstance(stored, bytes):
                        file.write_bytes(stored)
                    else:
                        Image.fromarray(stored).save(file)
    return folder


def training(images: Path, options: Options) -> TrainConfig:
    return TrainConfig(
        data=str(images),
        task="distil",
        model=options.model,
        image_size=(options.image_size,),
        distillation=Distillation(options.teacher, teacher_size=(options.image_size,)),
        val_fraction=0.02,
        epochs=options.epochs,
        evaluate_every=max(round(options.epochs / 4), 1),
        batch_size=options.batch_size,
        optim=Optim(optimizer="muon", lr=options.lr, weight_decay=0.05, warmup=0.1),
        augment=Augment(crop="resized", crop_scale=(0.2, 1.0), flip=0.5, policy="none", mixup=options.mixup),
        device=options.device,
        seed=options.seed,
        out=options.out / "student",
    )


def main(options: Options) -> Result:
    metrics = finished(training(write_images(options), options))
    student = load_encoder(options.out / "student" / "best")
    teacher = load_encoder(options.teacher, image_size=options.image_size)
    encoders = {"random": control(student, options.seed), "distilled": student, "teacher": teacher}
    rows = []
    for data in (options.pets, options.cifar10):
        settings = ProbeOptions(
            checkpoint=Path(options.teacher),
            data=(data,),
            data_root=options.data_root,
            device=options.device,
            precision="auto",
            workers=options.workers,
            seed=options.seed,
            cache=options.out / "features",
        )
        rows += [probe(name, encoder, data, settings) for name, encoder in encoders.items()]
    result = Result(rows, metrics["epochs"], metrics["seconds"], metrics["images_per_second"])
    cells = [table(row) for row in rows]
    setting = f"{options.model} distilled from {options.teacher}; top-1 in % with frozen features"
    publish(setting, list(cells[0]), [list(row.values()) for row in cells], [result], options.out / "results.json")
    return result


if __name__ == "__main__":
    run_recipes(lambda: main(tyro.cli(Options, description=__doc__)))
