"""Inference: images in, labels, features or masks out.

`engine.py` is the one path from an image file to a model's output. `Predictor` and `SegmentPredictor` build on it;
`predict` and `embed` are the verbs of the command line as functions. Evaluation, probes and serving use the same path.
"""

from vitreous.inference.engine import Embedding as Embedding
from vitreous.inference.engine import Label as Label
from vitreous.inference.engine import Prediction as Prediction
from vitreous.inference.engine import top_labels as top_labels
from vitreous.inference.predict_images import embed as embed
from vitreous.inference.predict_images import predict as predict
from vitreous.inference.predictor import Predictor as Predictor
from vitreous.inference.predictor import Segmentation as Segmentation
from vitreous.inference.predictor import SegmentPredictor as SegmentPredictor
