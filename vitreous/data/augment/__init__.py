"""Augmentation of training batches.

config.py: the `Augmentation` config; does not import torch. The others augment whole batches: batch.py applies a
config; policies.py has RandAugment, TrivialAugment and 3-Augment, operations.py flips, shifts, colours and blurs, and
mixing.py mixup and CutMix.
"""

from vitreous.data.augment.config import Augmentation

__all__ = ["Augmentation"]
