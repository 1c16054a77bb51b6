"""Inference: predict labels, numbers, features or masks for images.

`engine` runs a model on images (also for evaluation, probes and serving). `predictor` uses it for classification,
regression, feature extraction and segmentation; `predictor_for` selects the predictor for the task of a model.
`predict_images` has the options, images and results of `vitreous.predict` and `vitreous.embed`, which `compute`
computes. `cpu_backends` chooses onnxruntime or OpenVINO for large jobs on a CPU, `cuda_graphs` records small batches on
a GPU, and `fp8` prepares models in 8 bits. `shards` divides large sets of images, and `shard_folder` writes a file per
shard. `prediction_files` writes results, `fit_calibration` fits the temperature and the thresholds for label sets and
unknown images, and `mask_images` draws masks.
"""

from vitreous.inference.engine import Embedding, Engine, MultiLabelPrediction, NumberPrediction, Precision, Prediction
from vitreous.inference.predict_images import Embeddings, Results, open_encoder, open_model
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
    "open_encoder",
    "open_model",
    "predictor_for",
]
