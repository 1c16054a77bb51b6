"""Data pipeline: open data sets, decode and augment images, and load batches.

open.py: resolves `--data` and makes the train, val and test splits. loader.py: batches and sample order. sources/:
readers for each storage format. image/: decoding and cropping. augment/: augmentation on the device. masks/:
segmentation masks. doctor/: `vitreous data check`. This file imports nothing, to keep torch out of `vitreous --help`.
"""
