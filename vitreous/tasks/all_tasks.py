"""The built-in tasks, by the name that `--task` selects them with."""

from vitreous.tasks.base import Task
from vitreous.tasks.classify import Classify
from vitreous.tasks.masked import Mae, Mpp
from vitreous.tasks.multilabel import MultiLabelTask
from vitreous.tasks.regress import Regress
from vitreous.tasks.segment import Segment

TASKS: dict[str, type[Task]] = {
    "classify": Classify,
    "multilabel": MultiLabelTask,
    "regress": Regress,
    "segment": Segment,
    "mae": Mae,
    "mpp": Mpp,
}
