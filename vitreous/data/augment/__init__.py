"""Augmentation of training batches.

config.py: the `Augmentation` config; does not import torch. batch.py applies it to whole batches, with random erasing,
mixup and CutMix. policies.py: RandAugment, TrivialAugment and 3-Augment. operations.py: flips, shifts, colours, blurs.
"""

from vitreous.data.augment.config import Augmentation

__all__ = ["Augmentation"]
