"""Which predictor a model is for: the wrong one would fail deep inside, with an error that says nothing."""

from typing import Literal

from vitreous.model.config import ResNetConfig, SegmenterConfig, ViTConfig

KINDS = {"Predictor": (ViTConfig, ResNetConfig), "SegmentPredictor": (SegmenterConfig,)}


def check_suits(model: object, predictor: Literal["Predictor", "SegmentPredictor"]) -> None:
    """Asks the config, which a model still has where torch.compile wraps it.

    >>> check_suits("ViT-B/16", "Predictor")
    Traceback (most recent call last):
        ...
    TypeError: model is a str, but Predictor takes a ViT or ResNet
    """
    config = getattr(model, "config", None)
    if isinstance(config, KINDS[predictor]):
        return
    takes = " or ".join(kind.__name__.removesuffix("Config") for kind in KINDS[predictor])
    other = "".join(f": use {name}" for name, kinds in KINDS.items() if isinstance(config, kinds))
    raise TypeError(f"model is a {type(model).__name__}, but {predictor} takes a {takes}{other}")
