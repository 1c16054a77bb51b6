"""timm models equivalent to Google's, and their weights in the layout of Google's `.npz` files."""

import dataclasses
from functools import partial
from typing import Any

from torch import nn

from flax_arrays import Arrays, flax_arrays
from optional_imports import import_timm
from parity import noisy
from vitreous.model.config import ViTConfig
from vitreous.model.options import GlobalAverage, Preprocessing, ResNetStem

NATIVE, OTHER = (32, 32), (40, 24)
POSITION = "Transformer/posembed_input/pos_embedding"
SQUASH = Preprocessing(fit="squash", interpolation="bilinear")
PLAIN = ViTConfig(
    image_size=NATIVE,
    patch_size=(8, 8),
    width=48,  # not a multiple of 64, so the number of heads is read from the tensors
    depth=2,
    num_heads=4,
    mlp_width=96,
    num_classes=7,
    preprocessing=SQUASH,
)

# Changes to PLAIN, and the equivalent timm arguments.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "class token": ({}, {}),
    "average": (
        {"class_token": False, "pool": GlobalAverage("before")},
        {"class_token": False, "global_pool": "avg", "fc_norm": False},
    ),
    "no head": ({"num_classes": 0}, {"num_classes": 0}),
    "one channel, patches not square": (
        {"channels": 1, "patch_size": (8, 4), "image_size": (32, 16)},
        {"in_chans": 1},
    ),
}
HYBRIDS: dict[str, dict[str, Any]] = {
    "R": {"stem": ResNetStem((), 64, "timm"), "patch_size": (8, 8), "image_size": (64, 64)},
    "narrow, two stages": {"stem": ResNetStem((1, 2), 32, "timm"), "patch_size": (2, 2), "image_size": (64, 64)},
    "narrow, four stages": {"stem": ResNetStem((2, 1, 1, 1), 32, "timm"), "patch_size": (1, 1), "image_size": (64, 64)},
}
PUBLISHED = {"R": "vit_tiny_r_s16_p8_224", "R50": "vit_base_r50_s16_224"}  # timm's names
R50 = {"stem": ResNetStem((3, 4, 9), 64, "timm"), "patch_size": (1, 1), "image_size": NATIVE}


def config_of(case: str) -> ViTConfig:
    changes = HYBRIDS | {"R50": R50} | {case: ours for case, (ours, _) in CASES.items()}
    return dataclasses.replace(PLAIN, **changes[case])


def timm_model(case: str, **more: Any) -> Any:
    timm, config = import_timm(), config_of(case)
    sizes = {"embed_dim": 48, "depth": 2, "num_heads": 4, "mlp_ratio": 2, "num_classes": 7, "act_layer": "gelu_tanh"}
    sizes |= {"img_size": config.image_size}
    if case in PUBLISHED:
        return noisy(timm.create_model(PUBLISHED[case], **sizes | more))
    if config.stem is not None:
        more["embed_layer"] = partial(timm.layers.HybridEmbed, backbone=timm_resnet(config.stem))
    arguments = CASES[case][1] if case in CASES else {}
    vit = timm.models.vision_transformer.VisionTransformer
    return noisy(vit(**sizes | {"patch_size": config.patch_size} | arguments | more))


def timm_resnet(stem: ResNetStem) -> nn.Module:
    """Build the ResNet of timm's hybrids with the stages and width of `stem`."""
    timm = import_timm()
    return timm.models.resnetv2.ResNetV2(
        layers=stem.stages,
        channels=tuple(4 * stem.width << stage for stage in range(len(stem.stages))),
        stem_chs=stem.width,
        num_classes=0,
        global_pool="",
        preact=False,
        stem_type="same",
        conv_layer=partial(timm.layers.StdConv2dSame, eps=1e-8),
    )


def arrays_of(model: Any) -> Arrays:
    return flax_arrays(model, POSITION, attention=1, mlp_norm=2, mlp=3)
