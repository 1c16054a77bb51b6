"""Tasks: what a model is trained for.

Each task is one class (in classify.py, segment.py or masked.py) with the data it needs, its model, loss, metrics,
defaults and report sections; base.py documents what a task consists of, config.py is the config of a run. The *_metrics
files evaluate models, for training and for `vitreous eval`. Importing this package does not import torch.
"""
