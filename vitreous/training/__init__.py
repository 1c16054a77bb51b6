"""Training: `run.py` implements `vitreous.train`, from the config to the report.

defaults.py completes the config. setup.py builds the model, the training step and its optimizer (optimizer_step.py),
and the data loaders (grouped_loader.py augments several batches at once), and compiles the step (compiling.py);
whitening.py initialises the patch embedding from images. progress.py displays and logs metrics, ddp_fsdp.py handles
multiple processes, trackers.py logs to experiment trackers, run_folder.py and checkpoint.py save and resume runs, and
run_results.py evaluates the best model and writes the report. lda_head.py and cached_head.py train only the head, on
features that frozen_features.py computes once. extend.py implements `vitreous.extend`. The run config and all
task-specific code are in `vitreous.tasks`.
"""

from typing import TYPE_CHECKING

from vitreous.common.lazy_names import lazy_names
from vitreous.tasks.config import (
    Augment,
    Distillation,
    Masking,
    Optim,
    Segmenting,
    SemiSupervised,
    TableTargets,
    TrainConfig,
)

if TYPE_CHECKING:
    from vitreous.training.extend import Extension as Extension
    from vitreous.training.run import Interrupted as Interrupted
    from vitreous.training.run import Run as Run
    from vitreous.training.run import train as train

_HOMES = {
    "Extension": "vitreous.training.extend",
    "Interrupted": "vitreous.training.run",
    "Run": "vitreous.training.run",
    "train": "vitreous.training.run",
}
__all__ = [
    "Augment",
    "Distillation",
    "Masking",
    "Optim",
    "Segmenting",
    "SemiSupervised",
    "TableTargets",
    "TrainConfig",
    *_HOMES,
]
if not TYPE_CHECKING:  # mypy would accept any name
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
