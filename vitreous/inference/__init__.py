"""Inference: predict labels, features or masks for images.

`engine` runs a model on images (also for evaluation, probes and serving); `predictor` implements classification,
features and segmentation on top of it, and `predictor_for` chooses by the task of the model. `predict_images`
implements `vitreous.predict` and `vitreous.embed`, and expands folders and globs; `prediction_files` writes results;
`mask_images` draws masks; `device` chooses the device and checks its memory.
"""

from vitreous.inference.predictor import Predictor as Predictor
from vitreous.inference.predictor import SegmentPredictor as SegmentPredictor
from vitreous.inference.predictor import predictor_for as predictor_for
