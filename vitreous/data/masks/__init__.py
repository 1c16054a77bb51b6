"""Segmentation masks.

folders.py: pairs images with masks, in `images/` and `masks/` folders or in Pascal VOC's layout. layouts.py: other
common layouts, such as CamVid and Cityscapes. files.py: reads `classes.txt` and mask files, and checks all masks before
training.
"""

from vitreous.data.masks.files import ColouredMask, MaskCheck, check_masks, read_classes, read_ids
from vitreous.data.masks.folders import MaskedFiles, open_mask_folder, open_unmasked

__all__ = [
    "ColouredMask",
    "MaskCheck",
    "MaskedFiles",
    "check_masks",
    "open_mask_folder",
    "open_unmasked",
    "read_classes",
    "read_ids",
]
