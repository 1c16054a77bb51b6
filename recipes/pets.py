"""Oxford-IIIT Pets, 37 breeds, 3,680 pictures to learn from: a DINOv2-S fine-tuned, beside what else one could do.

Pictures of 160 pixels (shrunk, every one squashed to a square) are shown at 224.

Command:  python -m recipes.pets --data DIR --init dinov2s_reg4.pt       (DIR holds train/BREED/... and test/BREED/...)
"""

from pathlib import Path

from vitreous.train.config import Augment, Optim, TrainConfig


def config() -> TrainConfig:
    return TrainConfig(
        data="pets",
        init=Path("dinov2s_reg4.pt"),
        image_size=(224,),
        epochs=20,
        batch_size=128,
        stochastic_depth=0.1,
        optim=Optim(lr=2e-4, layer_decay=0.75, weight_decay=0.05, warmup=0.1),
        augment=Augment(crop="resized", crop_scale=(0.35, 1.0), policy="trivial", mixup=0.2, cutmix=1.0),
        evaluate_every=5,
    )


if __name__ == "__main__":
    from vitreous.cli import train_recipe

    train_recipe(config())
