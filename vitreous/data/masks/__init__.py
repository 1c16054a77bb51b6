"""Images with masks, for segmentation.

folders.py pairs the images and masks of a folder. files.py: the classes of pixels, from `classes.txt`, with their ids;
reads mask files, and checks all of them before training.
"""
