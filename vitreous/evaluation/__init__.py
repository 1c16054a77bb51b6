"""Evaluation: how good a model is, and where it fails."""
