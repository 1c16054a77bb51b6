"""Every kind of model that a checkpoint can hold."""

from vitreous.model.build import build
from vitreous.model.config import AnyConfig as AnyConfig
from vitreous.model.resnet import ResNet
from vitreous.model.segmenter import Segmenter
from vitreous.model.vit import ViT

AnyModel = ViT | ResNet | Segmenter


def build_any(config: AnyConfig) -> AnyModel:
    """The model that `config` describes, freshly initialised."""
    return build(config)  # type: ignore[return-value]
