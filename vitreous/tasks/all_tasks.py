"""The built-in tasks by name, as used by `--task`."""

from vitreous.tasks.base import Task
from vitreous.tasks.classify import Classify
from vitreous.tasks.masked import Mae, Mpp
from vitreous.tasks.segment import Segment

TASKS: dict[str, type[Task]] = {"classify": Classify, "segment": Segment, "mae": Mae, "mpp": Mpp}
