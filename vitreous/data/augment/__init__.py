"""Augmentation of training batches.

config.py: `Augmentation`, plain numbers without torch. pipeline.py: crop, flip, policy, colour jitter and erasing, in
order. policy.py: RandAugment, TrivialAugment and 3-Augment. transforms.py: the single operations. mixup.py: mixup and
CutMix.
"""

from vitreous.data.augment.config import Augmentation

__all__ = ["Augmentation"]
