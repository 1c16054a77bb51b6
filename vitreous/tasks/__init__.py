"""Training tasks: classification, segmentation and masked pre-training.

Each task is one class (in classify.py, segment.py or masked.py) that defines its data, model, loss, metrics, defaults
and report sections. base.py defines the interface of a task, and config.py the config of a run. The *_metrics files
contain the evaluation for training and `vitreous eval`. Importing this package does not import torch.
"""
