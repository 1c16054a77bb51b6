"""Images with masks, for segmentation.

folders.py: `open_masked` pairs the images and masks of a folder. files.py: reads mask files, and checks all of them
before training. classes.py: the classes of pixels, from `classes.txt`, and their ids in the files.
"""
