"""Vitreous: a Vision Transformer you can see through.

Names are imported on first use to keep `import vitreous` and `vitreous --help` fast.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from vitreous.evaluation.evaluate_model import evaluate as evaluate
    from vitreous.explanation.explain import explain as explain
    from vitreous.explanation.result import Explanation as Explanation
    from vitreous.inference.predict_images import embed as embed
    from vitreous.inference.predict_images import predict as predict
    from vitreous.inference.predictor import Predictor as Predictor
    from vitreous.inference.predictor import SegmentPredictor as SegmentPredictor
    from vitreous.model.build import build as build
    from vitreous.model.config import ResNetConfig as ResNetConfig
    from vitreous.model.config import SegmenterConfig as SegmenterConfig
    from vitreous.model.config import ViTConfig as ViTConfig
    from vitreous.model.resnet import ResNet as ResNet
    from vitreous.model.segmenter import Segmenter as Segmenter
    from vitreous.model.tokens import Features as Features
    from vitreous.model.vit import ViT as ViT
    from vitreous.serving import serve as serve
    from vitreous.training import TrainConfig as TrainConfig
    from vitreous.training.extend import extend as extend
    from vitreous.training.run import Run as Run
    from vitreous.training.run import train as train
    from vitreous.weights.convert import Conversion as Conversion
    from vitreous.weights.convert import convert as convert
    from vitreous.weights.create import create as create
    from vitreous.weights.formats.base import AssumptionWarning as AssumptionWarning
    from vitreous.weights.load import load as load
    from vitreous.weights.load import save as save

_HOMES = {
    "AssumptionWarning": "vitreous.weights.formats.base",
    "build": "vitreous.model.build",
    "Conversion": "vitreous.weights.convert",
    "convert": "vitreous.weights.convert",
    "create": "vitreous.weights.create",
    "embed": "vitreous.inference.predict_images",
    "evaluate": "vitreous.evaluation.evaluate_model",
    "explain": "vitreous.explanation.explain",
    "Explanation": "vitreous.explanation.result",
    "extend": "vitreous.training.extend",
    "Features": "vitreous.model.tokens",
    "load": "vitreous.weights.load",
    "predict": "vitreous.inference.predict_images",
    "Predictor": "vitreous.inference.predictor",
    "ResNet": "vitreous.model.resnet",
    "ResNetConfig": "vitreous.model.config",
    "Run": "vitreous.training.run",
    "save": "vitreous.weights.load",
    "Segmenter": "vitreous.model.segmenter",
    "SegmenterConfig": "vitreous.model.config",
    "SegmentPredictor": "vitreous.inference.predictor",
    "serve": "vitreous.serving",
    "train": "vitreous.training.run",
    "TrainConfig": "vitreous.training",
    "ViT": "vitreous.model.vit",
    "ViTConfig": "vitreous.model.config",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vitreous' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]
