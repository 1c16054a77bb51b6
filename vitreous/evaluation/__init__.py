"""Evaluation of classifiers and segmenters, of frozen encoders (with probes), and of data sets (with an encoder).

evaluate_model.py implements `vitreous.evaluate`. Images are processed as in prediction (`vitreous.inference`). Probes
are trained on features of the train split: probe.py implements k-NN; linear.py implements ridge regression, linear
probes and few-shot probes. check_data.py finds label errors (label_errors.py), near duplicates (near_duplicates.py) and
outliers. findings_page.py shows the findings. features.py computes and caches features. discriminant.py implements the
classifier of `vitreous train --train-only lda`. calibrate_model.py calibrates classifiers.
"""

from vitreous.evaluation.calibrate_model import Calibrated, calibrate
from vitreous.evaluation.evaluate_model import (
    ClassificationMetrics,
    Metrics,
    MultiLabelMetrics,
    RegressionMetrics,
    SegmentationMetrics,
    evaluate,
)
from vitreous.evaluation.probe import ProbeMetrics

__all__ = [
    "Calibrated",
    "ClassificationMetrics",
    "Metrics",
    "MultiLabelMetrics",
    "ProbeMetrics",
    "RegressionMetrics",
    "SegmentationMetrics",
    "calibrate",
    "evaluate",
]
