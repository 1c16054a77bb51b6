"""Inference: predict labels, numbers, features or masks for images.

`engine` decodes images and runs a model on them (also for evaluation, probes and serving); `forward_pass` is shared
with training. `predictor` and `segment_predictor` compute `predictions`; `predictor_for` selects the predictor
for the task of a model. `predict_images` has the options, images and results of `vitreous.predict` and
`vitreous.embed`, which `compute` computes. `cpu_backends` chooses onnxruntime or OpenVINO for large jobs on a CPU,
`cuda_graphs` records small batches on a GPU, and `fp8` prepares models in 8 bits. `shards` divides large sets of
images, and `shard_folder` writes a file per shard. `prediction_files` writes results, `fit_calibration` fits the
temperature and the thresholds for label sets and unknown images, and `mask_images` draws masks.
"""

from vitreous.inference.engine import Engine, Precision
from vitreous.inference.predict_images import Embeddings, Results, open_encoder, open_model
from vitreous.inference.predictions import Embedding, MultiLabelPrediction, NumberPrediction, Prediction, Segmentation
from vitreous.inference.predictor import (
    Embedder,
    FeatureKind,
    MultiLabelPredictor,
    Predictor,
    RegressPredictor,
    predictor_for,
)
from vitreous.inference.segment_predictor import SegmentPredictor

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
