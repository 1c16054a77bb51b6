"""Explanations of a model's predictions: patch importance maps, faithfulness tests, and figures of the weights.

`attention_and_logit_lens` captures a forward pass. `rollout_relevance_occlusion` uses it to compute importance maps,
and tests the faithfulness of the maps. `pca_and_similarity` compares patches, positions and filters. `draw` overlays
maps on the image, `explain_report` writes figures and report.html, and `explain` implements `vitreous.explain`.
This file does not import torch, which keeps `vitreous --help` fast.
"""

from typing import Literal, get_args

MapName = Literal["relevance", "occlusion", "rollout", "attention"]  # patch importance maps
MAPS: tuple[MapName, ...] = get_args(MapName)
CLASS_MAPS = ("relevance", "occlusion")  # maps that explain one class

Method = Literal[
    "relevance", "occlusion", "rollout", "attention", "faithfulness",
    "heads", "distance", "similarity", "pca", "lens", "position", "filters",
]  # fmt: skip
METHODS: tuple[Method, ...] = get_args(Method)
HEAD_METHODS = frozenset({"relevance", "occlusion", "faithfulness", "lens"})  # methods that need a classification head
IMAGE_METHODS = frozenset(METHODS) - {"position", "filters"}  # methods that need an image
