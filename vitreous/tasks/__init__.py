"""Training tasks: classification, several labels, regression, segmentation, masked pre-training and distillation.

Each task is a class (in classify.py, semi.py for semi-supervised classification, multilabel.py, regress.py, segment.py,
masked.py or distil.py) that defines its data, model, loss, metrics, defaults and report sections. base.py defines the
interface of tasks, unlabelled.py that of tasks without labels, progressive.py the image sizes of progressive resizing,
all_tasks.py lists the tasks by name, and config.py defines the config of a run. The *_metrics.py files contain the
evaluation code for training and `vitreous eval`. Names are imported on first use, so that the config can be used
without importing torch.
"""

from typing import TYPE_CHECKING

from vitreous.common.lazy_names import lazy_names

if TYPE_CHECKING:
    from vitreous.tasks.all_tasks import TASKS as TASKS
    from vitreous.tasks.base import Choice as Choice
    from vitreous.tasks.base import Finished as Finished
    from vitreous.tasks.base import Results as Results
    from vitreous.tasks.base import Task as Task
    from vitreous.tasks.classification_metrics import Evaluation as Evaluation
    from vitreous.tasks.classification_metrics import classify_source as classify_source
    from vitreous.tasks.classify import Classify as Classify
    from vitreous.tasks.config import Augment as Augment
    from vitreous.tasks.config import Distillation as Distillation
    from vitreous.tasks.config import Masking as Masking
    from vitreous.tasks.config import Optim as Optim
    from vitreous.tasks.config import Segmenting as Segmenting
    from vitreous.tasks.config import SemiSupervised as SemiSupervised
    from vitreous.tasks.config import TableTargets as TableTargets
    from vitreous.tasks.config import TrainConfig as TrainConfig
    from vitreous.tasks.distil import Distil as Distil
    from vitreous.tasks.masked import Mae as Mae
    from vitreous.tasks.masked import Mpp as Mpp
    from vitreous.tasks.multilabel import MultiLabelTask as MultiLabelTask
    from vitreous.tasks.multilabel_metrics import MultiLabelEvaluation as MultiLabelEvaluation
    from vitreous.tasks.regress import Regress as Regress
    from vitreous.tasks.regression_metrics import NumberEvaluation as NumberEvaluation
    from vitreous.tasks.segment import Segment as Segment
    from vitreous.tasks.segmentation_metrics import SegmentEvaluation as SegmentEvaluation
    from vitreous.tasks.segmentation_metrics import segment_source as segment_source

_HOMES = {
    "Augment": "vitreous.tasks.config",
    "Choice": "vitreous.tasks.base",
    "Classify": "vitreous.tasks.classify",
    "classify_source": "vitreous.tasks.classification_metrics",
    "Distil": "vitreous.tasks.distil",
    "Distillation": "vitreous.tasks.config",
    "Evaluation": "vitreous.tasks.classification_metrics",
    "Finished": "vitreous.tasks.base",
    "Mae": "vitreous.tasks.masked",
    "Masking": "vitreous.tasks.config",
    "Mpp": "vitreous.tasks.masked",
    "MultiLabelEvaluation": "vitreous.tasks.multilabel_metrics",
    "MultiLabelTask": "vitreous.tasks.multilabel",
    "NumberEvaluation": "vitreous.tasks.regression_metrics",
    "Optim": "vitreous.tasks.config",
    "Regress": "vitreous.tasks.regress",
    "Results": "vitreous.tasks.base",
    "Segment": "vitreous.tasks.segment",
    "segment_source": "vitreous.tasks.segmentation_metrics",
    "SegmentEvaluation": "vitreous.tasks.segmentation_metrics",
    "Segmenting": "vitreous.tasks.config",
    "SemiSupervised": "vitreous.tasks.config",
    "TableTargets": "vitreous.tasks.config",
    "Task": "vitreous.tasks.base",
    "TASKS": "vitreous.tasks.all_tasks",
    "TrainConfig": "vitreous.tasks.config",
}
__all__ = sorted(_HOMES)
if not TYPE_CHECKING:  # mypy would accept any name
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
