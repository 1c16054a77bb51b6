"""Evaluation of classifiers and segmenters, and of frozen encoders with probes.

Images are processed as in prediction (`vitreous.inference`). Probes are trained on features of the train split:
probe.py implements k-NN; linear.py implements ridge regression, linear probes and few-shot probes. Nothing is printed.
"""

from vitreous.evaluation.evaluate_model import ClassificationMetrics, Metrics, SegmentationMetrics, evaluate
from vitreous.evaluation.probe import ProbeMetrics

__all__ = ["ClassificationMetrics", "Metrics", "ProbeMetrics", "SegmentationMetrics", "evaluate"]
