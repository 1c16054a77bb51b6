"""The built-in tasks by name, as used by `--task`."""

from vitreous.tasks.base import Task
from vitreous.tasks.classify import Classify
from vitreous.tasks.distil import Distil
from vitreous.tasks.masked import Mae, Mpp
from vitreous.tasks.multilabel import MultiLabelTask
from vitreous.tasks.regress import Regress
from vitreous.tasks.segment import Segment
from vitreous.tasks.semi import Consistency, MetaPseudoLabels, NoisyStudent

TASKS: dict[str, type[Task]] = {
    "classify": Classify,
    "multilabel": MultiLabelTask,
    "regress": Regress,
    "segment": Segment,
    "mae": Mae,
    "mpp": Mpp,
    "distil": Distil,
}

# Classification with --unlabelled, by the value of --semi.
SEMI_SUPERVISED: dict[str, type[Task]] = {
    "consistency": Consistency,
    "noisy-student": NoisyStudent,
    "meta-pseudo-labels": MetaPseudoLabels,
}
