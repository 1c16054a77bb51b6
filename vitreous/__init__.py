"""Vitreous: a Vision Transformer you can see through.

This package exports the functions (`create`, `load`, `train`, ...), the types of their arguments and results, and the
models. Names are imported on first use, which keeps `import vitreous` and `vitreous --help` fast.
"""

from typing import TYPE_CHECKING

from vitreous.common.lazy_names import lazy_names

__version__ = "0.1.0"

if TYPE_CHECKING:
    from vitreous.cluster.run_inference import embed as embed
    from vitreous.cluster.run_inference import predict as predict
    from vitreous.data.doctor.check import DataReport as DataReport
    from vitreous.evaluation.calibrate_model import Calibrated as Calibrated
    from vitreous.evaluation.calibrate_model import calibrate as calibrate
    from vitreous.evaluation.check_data import check_data as check_data
    from vitreous.evaluation.evaluate_model import ClassificationMetrics as ClassificationMetrics
    from vitreous.evaluation.evaluate_model import Metrics as Metrics
    from vitreous.evaluation.evaluate_model import MultiLabelMetrics as MultiLabelMetrics
    from vitreous.evaluation.evaluate_model import RegressionMetrics as RegressionMetrics
    from vitreous.evaluation.evaluate_model import SegmentationMetrics as SegmentationMetrics
    from vitreous.evaluation.evaluate_model import evaluate as evaluate
    from vitreous.evaluation.probe import ProbeMetrics as ProbeMetrics
    from vitreous.explanation.explain_image import explain as explain
    from vitreous.explanation.result import Explanation as Explanation
    from vitreous.exporting.export_model import Export as Export
    from vitreous.exporting.export_model import export as export
    from vitreous.exporting.quantise_checkpoint import Quantised as Quantised
    from vitreous.exporting.quantise_checkpoint import quantise as quantise
    from vitreous.inference.predict_images import Embeddings as Embeddings
    from vitreous.inference.predict_images import Results as Results
    from vitreous.inference.predict_images import Written as Written
    from vitreous.inference.predictions import Embedding as Embedding
    from vitreous.inference.predictions import MultiLabelPrediction as MultiLabelPrediction
    from vitreous.inference.predictions import NumberPrediction as NumberPrediction
    from vitreous.inference.predictions import Prediction as Prediction
    from vitreous.inference.predictions import Segmentation as Segmentation
    from vitreous.inference.predictor import MultiLabelPredictor as MultiLabelPredictor
    from vitreous.inference.predictor import Predictor as Predictor
    from vitreous.inference.predictor import RegressPredictor as RegressPredictor
    from vitreous.inference.segment_predictor import SegmentPredictor as SegmentPredictor
    from vitreous.model.build import build as build
    from vitreous.model.config import ResNetConfig as ResNetConfig
    from vitreous.model.config import SegmenterConfig as SegmenterConfig
    from vitreous.model.config import ViTConfig as ViTConfig
    from vitreous.model.resnet import ResNet as ResNet
    from vitreous.model.segmenter import Segmenter as Segmenter
    from vitreous.model.tokens import Features as Features
    from vitreous.model.vit import ViT as ViT
    from vitreous.serving import serve as serve
    from vitreous.training import TrainConfig as TrainConfig
    from vitreous.training.extend import Extension as Extension
    from vitreous.training.extend import extend as extend
    from vitreous.training.run import Run as Run
    from vitreous.training.run import train as train
    from vitreous.weights.convert import Conversion as Conversion
    from vitreous.weights.convert import convert as convert
    from vitreous.weights.create import create as create
    from vitreous.weights.formats.base import AssumptionWarning as AssumptionWarning
    from vitreous.weights.formats.base import PartWarning as PartWarning
    from vitreous.weights.hub import push as push
    from vitreous.weights.load import load as load
    from vitreous.weights.load import save as save

_HOMES = {
    "AssumptionWarning": "vitreous.weights.formats.base",
    "PartWarning": "vitreous.weights.formats.base",
    "build": "vitreous.model.build",
    "calibrate": "vitreous.evaluation.calibrate_model",
    "Calibrated": "vitreous.evaluation.calibrate_model",
    "check_data": "vitreous.evaluation.check_data",
    "ClassificationMetrics": "vitreous.evaluation.evaluate_model",
    "Conversion": "vitreous.weights.convert",
    "convert": "vitreous.weights.convert",
    "create": "vitreous.weights.create",
    "DataReport": "vitreous.data.doctor.check",
    "embed": "vitreous.cluster.run_inference",
    "Embedding": "vitreous.inference.predictions",
    "Embeddings": "vitreous.inference.predict_images",
    "evaluate": "vitreous.evaluation.evaluate_model",
    "explain": "vitreous.explanation.explain_image",
    "Explanation": "vitreous.explanation.result",
    "export": "vitreous.exporting.export_model",
    "Export": "vitreous.exporting.export_model",
    "extend": "vitreous.training.extend",
    "Extension": "vitreous.training.extend",
    "Features": "vitreous.model.tokens",
    "load": "vitreous.weights.load",
    "Metrics": "vitreous.evaluation.evaluate_model",
    "MultiLabelMetrics": "vitreous.evaluation.evaluate_model",
    "MultiLabelPrediction": "vitreous.inference.predictions",
    "MultiLabelPredictor": "vitreous.inference.predictor",
    "NumberPrediction": "vitreous.inference.predictions",
    "predict": "vitreous.cluster.run_inference",
    "Prediction": "vitreous.inference.predictions",
    "Predictor": "vitreous.inference.predictor",
    "ProbeMetrics": "vitreous.evaluation.probe",
    "push": "vitreous.weights.hub",
    "quantise": "vitreous.exporting.quantise_checkpoint",
    "Quantised": "vitreous.exporting.quantise_checkpoint",
    "RegressionMetrics": "vitreous.evaluation.evaluate_model",
    "RegressPredictor": "vitreous.inference.predictor",
    "ResNet": "vitreous.model.resnet",
    "ResNetConfig": "vitreous.model.config",
    "Results": "vitreous.inference.predict_images",
    "Run": "vitreous.training.run",
    "save": "vitreous.weights.load",
    "Segmentation": "vitreous.inference.predictions",
    "SegmentationMetrics": "vitreous.evaluation.evaluate_model",
    "Segmenter": "vitreous.model.segmenter",
    "SegmenterConfig": "vitreous.model.config",
    "SegmentPredictor": "vitreous.inference.segment_predictor",
    "serve": "vitreous.serving",
    "train": "vitreous.training.run",
    "TrainConfig": "vitreous.training",
    "ViT": "vitreous.model.vit",
    "ViTConfig": "vitreous.model.config",
    "Written": "vitreous.inference.predict_images",
}
__all__ = sorted(_HOMES)
if not TYPE_CHECKING:  # mypy would accept any name
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
