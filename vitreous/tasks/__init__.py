"""Tasks: what a model is trained for.

Each task is one class (in classify.py, segment.py or masked.py) with the data it needs, its model, loss, metrics,
defaults and report sections; base.py documents what a task consists of, config.py holds its options. The *_loop and
*_metrics files evaluate models, for training and for `vitreous eval`. Importing this package does not import torch.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitreous.tasks.base import Task


def task_named(name: str) -> "type[Task]":
    """The class of a task. A new task is added here and to TaskConfig.task."""
    match name:
        case "classify":
            from vitreous.tasks.classify import Classify

            return Classify
        case "segment":
            from vitreous.tasks.segment import Segment

            return Segment
        case "mae" | "mpp":
            from vitreous.tasks.masked import Mae, Mpp

            return Mae if name == "mae" else Mpp
    raise ValueError(f"there is no task {name!r}")
