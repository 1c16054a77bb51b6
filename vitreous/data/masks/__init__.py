"""Segmentation masks.

folders.py: pairs images with masks. files.py: reads `classes.txt` and mask files, and checks all masks before training.
"""
