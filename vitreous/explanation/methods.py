"""Names of the explanation methods. This file does not import torch, which keeps `vitreous --help` fast."""

from typing import Literal, get_args

MapName = Literal["relevance", "occlusion", "rollout", "attention"]  # patch importance maps
MAPS: tuple[MapName, ...] = get_args(MapName)
CLASS_MAPS = ("relevance", "occlusion")  # maps that explain one class

Method = Literal[
    "relevance", "occlusion", "rollout", "attention", "faithfulness",
    "heads", "distance", "similarity", "pca", "lens", "position", "filters",
]  # fmt: skip
METHODS: tuple[Method, ...] = get_args(Method)
HEAD_METHODS = frozenset({"relevance", "occlusion", "faithfulness", "lens"})  # need a classification head
IMAGE_METHODS = frozenset(METHODS) - {"position", "filters"}  # need an image
ATTENTION_METHODS = frozenset(METHODS) - {"occlusion", "faithfulness", "pca", "filters"}  # need attention layers
