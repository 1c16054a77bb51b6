"""ImageNet pre-training as in the paper (Table 3 of arXiv 2010.11929): ViT-B/16, 300 epochs at 224 pixels.

Adam with decoupled weight decay 0.3, batch size 4096, 10,000 warm-up steps, cosine decay to zero, dropout 0.1, gradient
clipping at norm 1, and the head with one hidden layer of section 3.1.

Command:  python -m recipes.paper_pretrain --data imagenet/        (train/CLASS/... and val/CLASS/...)
          torchrun --nproc-per-node 8 -m recipes.paper_pretrain --data imagenet/        on eight GPUs
Result:   not measured; the paper reports 77.91 % for this model after fine-tuning at 384 pixels (Table 5)
"""

from vitreous.model.options import TanhHead
from vitreous.training import Augment, Optim, TrainConfig

STEPS = 300 * 1_281_167 // 4096


def config() -> TrainConfig:
    return TrainConfig(
        data="imagenet",
        model="ViT-B/16",
        overrides={"head": TanhHead(768)},
        image_size=(224,),
        steps=STEPS,
        batch_size=4096,
        dropout=0.1,
        compile=True,
        optim=Optim(lr=3e-3, weight_decay=0.3, warmup=10_000 / STEPS, clip=1.0),
        augment=Augment(crop="resized", crop_scale=(0.05, 1.0), flip=0.5, policy="none", mixup=0.0, cutmix=0.0),
    )


if __name__ == "__main__":
    from vitreous.cli.main import train_recipe

    train_recipe(config())
