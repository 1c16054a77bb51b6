"""Augmentation of training batches.

config.py: the `Augmentation` config; does not import torch. batch.py: flips, RandAugment, TrivialAugment,
3-Augment, colour jitter, random erasing, mixup and CutMix on whole batches.
"""

from vitreous.data.augment.config import Augmentation

__all__ = ["Augmentation"]
