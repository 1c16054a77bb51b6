"""Models of transformers and timm with the architecture of a ViTConfig."""

import warnings
from collections.abc import Callable
from types import ModuleType

import torch
from torch import nn

from vitreous.model.config import ViTConfig


def import_timm() -> ModuleType:
    """Import timm, even if torchvision was built for another torch version.

    Such a torchvision fails to import because its operators are missing. The ViTs in timm do not use them, so the two
    that are looked up at import are declared without an implementation.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            import torchvision  # noqa: F401
        except RuntimeError:
            for operator in ("nms", "qnms"):
                torch.library.define(f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou) -> Tensor")
        import timm

    return timm


def transformers_vit(config: ViTConfig) -> nn.Module:
    import_timm()  # transformers imports torchvision if it is installed
    from transformers import ViTConfig as Config
    from transformers import ViTForImageClassification

    return ViTForImageClassification(
        Config(
            hidden_size=config.width,
            num_hidden_layers=config.depth,
            num_attention_heads=config.num_heads,
            intermediate_size=config.mlp_width,
            patch_size=config.patch_size[0],
            image_size=config.image_size[0],
            num_labels=config.num_classes,
        )
    )


def timm_vit(config: ViTConfig) -> nn.Module:
    return import_timm().models.vision_transformer.VisionTransformer(
        img_size=config.image_size,
        patch_size=config.patch_size,
        embed_dim=config.width,
        depth=config.depth,
        num_heads=config.num_heads,
        mlp_ratio=config.mlp_width / config.width,
        num_classes=config.num_classes,
    )


PEERS: dict[str, Callable[[ViTConfig], nn.Module]] = {"transformers": transformers_vit, "timm": timm_vit}
