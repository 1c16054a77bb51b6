"""Inference: images in, labels, features or masks out.

`engine` is the one path from an image file to a model's output, which evaluation, probes and serving use too;
`predictor` builds classification, features and segmentation on it. `predict_images` has `vitreous.predict` and
`vitreous.embed`, and expands folders and globs; `prediction_files` writes results; `mask_images` draws masks; `device`
chooses the device and checks its memory.
"""

from vitreous.inference.predictor import Predictor as Predictor
from vitreous.inference.predictor import SegmentPredictor as SegmentPredictor
