"""Inference: predict labels, numbers, features or masks for images.

`engine` runs a model on images (also for evaluation, probes and serving); `predictor` implements classification,
regression, features and segmentation on top of it, and `predictor_for` chooses by the task of the model.
`predict_images` implements `vitreous.predict` and `vitreous.embed`, and expands folders and globs; `prediction_files`
writes results; `calibration` fits and applies temperatures, label sets and the threshold for unknown images;
`mask_images` draws masks; `device` chooses the device and checks its memory.
"""

from vitreous.inference.engine import Embedding, Engine, MultiLabelPrediction, NumberPrediction, Precision, Prediction
from vitreous.inference.predict_images import Embeddings, Results, embed, open_encoder, open_model, predict
from vitreous.inference.predictor import (
    Embedder,
    FeatureKind,
    MultiLabelPredictor,
    Predictor,
    RegressPredictor,
    Segmentation,
    SegmentPredictor,
    predictor_for,
)

__all__ = [
    "Embedder",
    "Embedding",
    "Embeddings",
    "Engine",
    "FeatureKind",
    "MultiLabelPrediction",
    "MultiLabelPredictor",
    "NumberPrediction",
    "Precision",
    "Prediction",
    "Predictor",
    "RegressPredictor",
    "Results",
    "SegmentPredictor",
    "Segmentation",
    "embed",
    "open_encoder",
    "open_model",
    "predict",
    "predictor_for",
]
