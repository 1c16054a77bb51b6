"""Oxford-IIIT Pets segmentation with DINOv2-S: pet, background and the border between them.

Images of 160 x 160 pixels are enlarged to 224 (16 x 16 patches) and evaluated at 160. The checkpoint is a ViT-S/14 with
four registers in the DINOv2 format. Only the last epoch is evaluated, so nothing is selected on the test split.

Command:  python -m recipes.pets_segment --data DIR --init dinov2s_reg4.pt
          (DIR contains images/train/..., images/test/..., masks/train/..., masks/test/... and classes.txt with
          the lines "1 pet", "2 background", "3 border")
Result:   on the 3,669 test images at 160 pixels:

                                                          mean IoU    pixel accuracy    boundary F
              fine-tuned, mask decoder: pet, background     96.4 %        98.3 %           89.7 %     --ignore border
              the same, with the border as a class          79.7 %        93.0 %           66.3 %
              frozen, linear decoder: pet, background       92.6 %        96.5 %           78.6 %     --ignore border
              the same, with the border as a class          68.4 %        87.7 %           45.1 %

          Some of the worst predictions are due to wrong labels: masks that are inverted, or empty in close-ups.
          Frozen: --decoder linear --cells 1 --train-only head --lr 3e-3 --layer-decay 1 --epochs 10 --evaluate-every 10
          --stochastic-depth 0
Cost:     100 s (fine-tuned) and 42 s (frozen) on one NVIDIA H200 with all four runs in parallel
"""

from pathlib import Path

from vitreous.training import Augment, Optim, Segmenting, TrainConfig


def config() -> TrainConfig:
    return TrainConfig(
        task="segment",
        data="pets",
        init=Path("dinov2s_reg4.pt"),
        image_size=(224,),
        epochs=20,
        batch_size=64,
        stochastic_depth=0.1,
        optim=Optim(lr=2e-4, layer_decay=0.75, weight_decay=0.05, warmup=0.1),
        augment=Augment(crop="resized", crop_scale=(0.35, 1.0), colour_jitter=0.3),
        segmenting=Segmenting(decoder="mask"),
        evaluate_every=20,
    )


if __name__ == "__main__":
    from vitreous.cli.main import train_recipe

    train_recipe(config())
