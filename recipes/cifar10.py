"""CIFAR-10 from scratch: a ViT-S/4 trained on the 50,000 training images only.

Command:  python -m recipes.cifar10 --data-root DIR      (DIR contains cifar10.npz; if omitted, the data is downloaded)
Result:   top-1 96.28 % on the 10,000 test images with the EMA weights after the last epoch (also the best of the six
          evaluations); top-5 99.88 %, calibration error 3.0 %
Cost:     369 s on one NVIDIA H200 including compilation, six evaluations and the report; 24,000 images/s

A depthwise convolution after every block replaces position embeddings, and average pooling replaces the class token. At
epoch 26 of a 40-epoch run, the training loss was 1.114, compared with 1.175 with a convolution after the first block
only.
"""

from vitreous.model.options import Conditional, GlobalAverage
from vitreous.training import Augment, Optim, TrainConfig


def config() -> TrainConfig:
    return TrainConfig(
        data="cifar10",
        model="ViT-S/4",
        image_size=(32,),
        overrides={"position": Conditional(blocks=12), "pool": GlobalAverage(), "class_token": False},
        epochs=150,
        batch_size=1024,
        compile=True,
        stochastic_depth=0.1,
        optim=Optim(optimizer="muon", lr=3e-3, weight_decay=0.05, warmup=0.05, ema=0.999),
        augment=Augment(crop="padded", policy="trivial", mixup=0.2, cutmix=1.0),
        evaluate_every=25,
    )


if __name__ == "__main__":
    from vitreous.cli.main import train_recipe

    train_recipe(config())
