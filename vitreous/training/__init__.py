"""Training: `run.py` implements `vitreous.train`, from the config to the report.

defaults.py completes the config. setup.py builds the model, the training step and its optimizer (optimizer_step.py),
and the data loaders, and compiles the step (compiling.py). progress.py displays and logs metrics, ddp_fsdp.py handles
multiple processes, run_folder.py and checkpoint.py save and resume runs, and run_results.py evaluates the best model
and writes the report. lda_head.py and cached_head.py train only the head, on features that frozen_features.py computes
once. extend.py implements `vitreous.extend`. The run config and all task-specific code are in `vitreous.tasks`.
"""

from vitreous.tasks.config import Augment, Distillation, Masking, Optim, Segmenting, TrainConfig

__all__ = ["Augment", "Distillation", "Masking", "Optim", "Segmenting", "TrainConfig"]
