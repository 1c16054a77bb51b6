"""Evaluation: `evaluate` measures a classifier, a segmenter, or a frozen encoder through a probe.

Images take the same path as in prediction (`vitreous.inference`). Probes learn from features of the train
split: `probe` has k-NN, `linear` has ridge regression, the linear probe and few-shot. Nothing here prints.
"""

from vitreous.evaluation.evaluate_model import ClassificationMetrics as ClassificationMetrics
from vitreous.evaluation.evaluate_model import Metrics as Metrics
from vitreous.evaluation.evaluate_model import SegmentationMetrics as SegmentationMetrics
from vitreous.evaluation.evaluate_model import evaluate as evaluate
from vitreous.evaluation.probe import ProbeMetrics as ProbeMetrics
