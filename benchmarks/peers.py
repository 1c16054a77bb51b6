"""Models of transformers and timm with the architecture of a ViTConfig."""

from collections.abc import Callable

from torch import nn

from vitreous.model.config import ViTConfig
from vitreous.weights.formats.huggingface.config import transformers_config
from vitreous.weights.peers import repair_torchvision, timm_model


def transformers_model(config: ViTConfig) -> nn.Module:
    repair_torchvision()
    from transformers import AutoConfig, AutoModelForImageClassification

    return AutoModelForImageClassification.from_config(AutoConfig.for_model(**transformers_config(config, "float32")))


PEERS: dict[str, Callable[[ViTConfig], nn.Module]] = {"transformers": transformers_model, "timm": timm_model}
