"""Fine-tuning as in the paper (Table 4 of arXiv 2010.11929): SGD with momentum, cosine schedule, 384 pixels, batch 512.

Position embeddings are resampled to the higher resolution, and the head is replaced (section 3.2). There is no weight
decay. The learning rate is the middle of the paper's sweep for ImageNet; try 0.001, 0.003 and 0.01 for small data sets.

Command:  python -m recipes.paper_finetune --data DIR --init CHECKPOINT        (any format, such as Google's .npz)
Result:   not measured; the paper's results at 384 pixels use these settings
"""

from pathlib import Path

from vitreous.training import Augment, Optim, TrainConfig


def config() -> TrainConfig:
    return TrainConfig(
        data="imagenet",
        init=Path("ViT-B_16.npz"),
        image_size=(384,),
        steps=20_000,
        batch_size=512,
        compile=True,
        optim=Optim(optimizer="sgd", lr=0.03, weight_decay=0.0, momentum=0.9, warmup=500 / 20_000, clip=1.0),
        augment=Augment(crop="resized", crop_scale=(0.05, 1.0), flip=0.5, policy="none", mixup=0.0, cutmix=0.0),
    )


if __name__ == "__main__":
    from vitreous.cli.main import train_recipe

    train_recipe(config())
