"""Training: `run.py` is all of `vitreous.train`, from the config to the report; the other files are its stages.

setup.py completes the config and builds model, optimizer (optim.py) and loaders; progress.py shows and logs metrics;
distributed.py serves several processes; run_folder.py and checkpoint.py store the run so that it can be resumed.
Everything that depends on the task, and the config of a run, is in `vitreous.tasks`.
"""

from vitreous.tasks.config import Augment, Distillation, Masking, Optim, Segmenting, TrainConfig

__all__ = ["Augment", "Distillation", "Masking", "Optim", "Segmenting", "TrainConfig"]
