"""Augmentation of training batches.

config.py: `Augmentation`, plain numbers without torch. batch.py: flips, RandAugment, TrivialAugment, 3-Augment, colour
jitter, erasing, mixup and CutMix, and their single operations, on whole batches.
"""

from vitreous.data.augment.config import Augmentation

__all__ = ["Augmentation"]
