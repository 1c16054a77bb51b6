"""Every kind of model that a checkpoint can hold."""

from vitreous.model.build import build
from vitreous.model.config import ResNetConfig, ViTConfig
from vitreous.model.resnet import ResNet
from vitreous.model.segmenter import Segmenter, SegmenterConfig, build_segmenter
from vitreous.model.vit import ViT

AnyModel = ViT | ResNet | Segmenter
AnyConfig = ViTConfig | ResNetConfig | SegmenterConfig


def build_any(config: AnyConfig) -> AnyModel:
    """The model that `config` describes, freshly initialised."""
    return build_segmenter(config) if isinstance(config, SegmenterConfig) else build(config)
