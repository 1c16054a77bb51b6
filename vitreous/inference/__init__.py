"""Inference: predict labels, features or masks for images.

`engine` runs a model on images (also for evaluation, probes and serving); `predictor` implements classification,
features and segmentation on top of it, and `predictor_for` chooses by the task of the model. `predict_images`
implements `vitreous.predict` and `vitreous.embed`, and expands folders and globs; `prediction_files` writes results;
`fit_calibration` fits the temperature and the thresholds of label sets and unknown images; `mask_images` draws masks.
"""

from vitreous.inference.engine import Embedding, Engine, Precision, Prediction
from vitreous.inference.predict_images import Embeddings, Results, embed, open_encoder, open_model, predict
from vitreous.inference.predictor import FeatureKind, Predictor, Segmentation, SegmentPredictor, predictor_for

__all__ = [
    "Embedding",
    "Embeddings",
    "Engine",
    "FeatureKind",
    "Precision",
    "Prediction",
    "Predictor",
    "Results",
    "SegmentPredictor",
    "Segmentation",
    "embed",
    "open_encoder",
    "open_model",
    "predict",
    "predictor_for",
]
