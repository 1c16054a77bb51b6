"""Weights: our own checkpoint folders, written so that a crash or a full disk never costs the one before."""
