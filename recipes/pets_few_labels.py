"""Oxford-IIIT Pets with 5 labels per class, from DINOv2-S: supervised, consistency, Noisy Student, Meta Pseudo Labels.

LoRA matrices and the head of a DINOv2-S are trained on 185 labelled images. The semi-supervised methods also use all
3,680 training images without their labels. The checkpoint is the one of recipes/pets.py.

Command:  python -m recipes.pets_few_labels --data DIR --init dinov2s_reg4.pt
          (DIR contains train/BREED/... and test/BREED/...)
Result:   not measured yet
Cost:     not measured yet

The command trains every method with three seeds, four runs side by side on one GPU, and writes the mean and the sample
standard deviation of top-1 on the 3,669 test images to runs/pets_few_labels/results.json. If it is repeated, it resumes
interrupted runs.
"""

from dataclasses import dataclass
from pathlib import Path

from recipes.few_labels import Options, main
from vitreous.training import Augment, Optim, SemiSupervised, TrainConfig


@dataclass(frozen=True)
class PetsOptions(Options):
    """Options of the comparison, and the checkpoint."""

    init: Path = Path("dinov2s_reg4.pt")
    """Checkpoint from which all runs start."""


OPTIONS = PetsOptions(data="pets", labels=5, out=Path("runs/pets_few_labels"), steps=1000)


def config(method: str = "consistency", options: PetsOptions = OPTIONS) -> TrainConfig:
    return TrainConfig(
        init=options.init,
        image_size=(224,),
        train_only="lora",
        batch_size=16,
        optim=Optim(lr=5e-4, warmup=0.1),
        augment=Augment(crop="resized", crop_scale=(0.35, 1.0), flip=0.5, policy="randaugment", erasing=0.25),
        semi_supervised=SemiSupervised(unlabelled_ratio=7, rounds=2 if method == "noisy-student" else 3),
    )


if __name__ == "__main__":
    main(config, OPTIONS, __doc__)
