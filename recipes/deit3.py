"""DeiT-III (arXiv 2204.07118): a plain ViT trained on ImageNet-1k with 3-Augment, mixup and CutMix.

The settings are those of the paper for 400 epochs at 224 pixels: batch size 2048, 3-Augment with colour jitter, mixup,
CutMix, repeated augmentation, low stochastic depth, and LayerScale from the preset. There are two differences: the loss
is cross-entropy instead of binary cross-entropy, and the optimizer is AdamW, with its own learning rate and weight
decay, instead of LAMB.

Command:  python -m recipes.deit3 --data imagenet/
Result:   not measured; the paper reports 80.4 % for S after 400 epochs
"""

from vitreous.training import Augment, Optim, TrainConfig


def config() -> TrainConfig:
    return TrainConfig(
        data="imagenet",
        model="DeiT-III-S/16",
        image_size=(224,),
        epochs=400,
        batch_size=2048,
        stochastic_depth=0.05,
        compile=True,
        optim=Optim(lr=2e-3, weight_decay=0.05, warmup=5 / 400, clip=1.0),
        augment=Augment(
            crop="resized",
            crop_scale=(0.08, 1.0),
            flip=0.5,
            policy="three",
            colour_jitter=0.3,
            mixup=0.8,
            cutmix=1.0,
            repeats=3,
        ),
        evaluate_every=10,
    )


if __name__ == "__main__":
    from vitreous.cli.main import train_recipe

    train_recipe(config())
