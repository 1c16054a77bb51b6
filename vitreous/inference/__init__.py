"""Inference: pictures in, labels or features out. Prediction, evaluation and serving share this one path."""

from vitreous.inference.predictor import Predictor as Predictor

__all__ = ["Predictor"]
