"""CIFAR-10 with 4,000 labels: supervised training, consistency, Noisy Student and Meta Pseudo Labels.

A ViT-S/4 is trained from scratch on 400 labelled images per class. The semi-supervised methods also use all 50,000
training images without their labels. Published: 96.11 % for Meta Pseudo Labels with a WideResNet-28-2.

Command:  python -m recipes.cifar10_4000_labels --data-root DIR     (DIR contains cifar10.npz)
Result:   not measured yet
Cost:     not measured yet

The command trains every method with three seeds, four runs side by side on one GPU, and writes the mean and the sample
standard deviation of top-1 on the 10,000 test images to runs/cifar10_4000_labels/results.json. If it is repeated, it
resumes interrupted runs. --methods, --seeds and --steps select less.
"""

from pathlib import Path

from recipes.few_labels import Options, main
from vitreous.model.options import Conditional, GlobalAverage
from vitreous.training import Augment, Optim, SemiSupervised, TrainConfig

OPTIONS = Options(data="cifar10", labels=400, out=Path("runs/cifar10_4000_labels"), steps=8000)


def config(method: str = "consistency", options: Options = OPTIONS) -> TrainConfig:
    return TrainConfig(
        model="ViT-S/4",
        image_size=(32,),
        overrides={"position": Conditional(blocks=12), "pool": GlobalAverage(), "class_token": False},
        batch_size=64,
        stochastic_depth=0.1,
        optim=Optim(optimizer="muon", lr=3e-3, weight_decay=0.05, warmup=0.05, ema=0.999),
        augment=Augment(crop="padded", flip=0.5, policy="randaugment", erasing=0.5, mixup=0.2, cutmix=1.0),
        semi_supervised=SemiSupervised(unlabelled_ratio=7, rounds=2 if method == "noisy-student" else 3),
    )


if __name__ == "__main__":
    main(config, OPTIONS, __doc__)
