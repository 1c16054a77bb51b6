"""Inference: pictures in, labels or features out. Prediction, evaluation and serving share this one path."""

from vitreous.infer.predictor import Predictor as Predictor

__all__ = ["Predictor"]
