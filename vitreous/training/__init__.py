"""Training: `run.py` is all of `vitreous.train`, from the config to the report; the other files are its stages.

config.py is the config of a run and defaults.py completes it; setup.py builds model, optimizer (optim.py, muon.py,
lora.py) and loaders; loop.py trains, in one or several processes (distributed.py), shows progress
(progress_display.py) and logs metrics (metrics_log.py); run_folder.py, checkpoint.py and data_record.py store the run
so that it can be resumed. Everything that depends on the task is in `vitreous.tasks`.
"""

from vitreous.training.config import Augment, Distillation, Masking, Optim, Segmenting, TrainConfig

__all__ = ["Augment", "Distillation", "Masking", "Optim", "Segmenting", "TrainConfig"]
