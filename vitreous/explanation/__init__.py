"""Explanations of a model's answers: maps of the patches that matter, tests of these maps, and the model's inside.

`attention_and_logit_lens` captures one forward pass; `importance_maps` computes rollout, relevance
and occlusion, and their faithfulness; `pca_and_similarity` compares patches, positions and filters. `draw` lays maps
over the image, `explain_report` writes figures and report.html. `explain.explain` is `vitreous.explain`.
This file imports no torch, so that `vitreous --help` is quick.
"""

from typing import Literal, get_args

MapName = Literal["relevance", "occlusion", "rollout", "attention"]  # importance of every patch
MAPS: tuple[MapName, ...] = get_args(MapName)
CLASS_MAPS = ("relevance", "occlusion")  # those about one class

Method = Literal[
    "relevance", "occlusion", "rollout", "attention", "faithfulness",
    "heads", "distance", "similarity", "pca", "lens", "position", "filters",
]  # fmt: skip
METHODS: tuple[Method, ...] = get_args(Method)
HEAD_METHODS = frozenset({"relevance", "occlusion", "faithfulness", "lens"})  # need a classification head
IMAGE_METHODS = frozenset(METHODS) - {"position", "filters"}  # need an image
