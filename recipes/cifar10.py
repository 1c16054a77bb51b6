"""CIFAR-10 from scratch: a plain ViT on 50,000 pictures of 32 pixels.

Command:  python -m recipes.cifar10 --data-root DIR      (DIR holds cifar10.npz; left out, the data is downloaded)
"""

from vitreous.train.config import Augment, Optim, TrainConfig
from vitreous.train.defaults import FEW_PICTURES


def config() -> TrainConfig:
    return TrainConfig(
        data="cifar10",
        model="ViT-S/4",
        image_size=(32,),
        set=FEW_PICTURES,
        epochs=150,
        batch_size=512,
        compile=True,
        stochastic_depth=0.1,
        optim=Optim(lr=1e-3, weight_decay=0.05, warmup=0.05, ema=0.999),
        augment=Augment(crop="padded", policy="trivial", mixup=0.2, cutmix=1.0),
        evaluate_every=10,
    )


if __name__ == "__main__":
    from vitreous.cli import train_recipe

    train_recipe(config())
