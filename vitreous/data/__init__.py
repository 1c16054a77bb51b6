"""Data sets: find them, read and decode their images, augment them and put them into batches.

open.py: from `--data` to train, val and test. loader.py: batches, and the random numbers of a sample. sources/: kinds
of storage. image/: decoding and cropping. augment/: augmentation on the device. masks/: segmentation masks. doctor/:
`vitreous data check`. Nothing is imported here, so that `vitreous --help` does not import torch.
"""
