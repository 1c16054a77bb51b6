"""Models of transformers and timm with the architecture of a ViTConfig."""

import warnings
from collections.abc import Callable
from contextlib import suppress

import torch
from torch import nn

from vitreous.model.config import ViTConfig
from vitreous.weights import peers
from vitreous.weights.formats.huggingface.config import transformers_config


def repair_torchvision() -> None:
    """Make torchvision, which other libraries import, importable even if it was built for another torch version.

    Such a torchvision fails to import because its operators are missing. ViTs do not use them, so the two that are
    looked up at import are declared without an implementation.
    """
    with warnings.catch_warnings(), suppress(ModuleNotFoundError):
        warnings.simplefilter("ignore")
        try:
            import torchvision
        except RuntimeError:
            for operator in ("nms", "qnms"):
                torch.library.define(f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou) -> Tensor")
            import torchvision  # noqa: F401


def timm_model(config: ViTConfig) -> nn.Module:
    repair_torchvision()
    return peers.timm_model(config)


def transformers_model(config: ViTConfig) -> nn.Module:
    repair_torchvision()
    from transformers import AutoConfig, AutoModelForImageClassification

    return AutoModelForImageClassification.from_config(AutoConfig.for_model(**transformers_config(config, "float32")))


PEERS: dict[str, Callable[[ViTConfig], nn.Module]] = {"transformers": transformers_model, "timm": timm_model}
