"""Evaluation of classifiers and segmenters, and of frozen encoders with probes.

Images are processed as in prediction (`vitreous.inference`). Probes are trained on features of the train split:
probe.py implements k-NN; linear.py implements ridge regression, linear probes and few-shot probes. Nothing is printed.
discriminant.py implements the classifier of `vitreous train --train-only lda`.
"""

from vitreous.evaluation.evaluate_model import ClassificationMetrics as ClassificationMetrics
from vitreous.evaluation.evaluate_model import Metrics as Metrics
from vitreous.evaluation.evaluate_model import SegmentationMetrics as SegmentationMetrics
from vitreous.evaluation.evaluate_model import evaluate as evaluate
from vitreous.evaluation.probe import ProbeMetrics as ProbeMetrics
