"""The figures by name, in the order in which they are told. This file imports no torch, so that `--help` is quick."""

from typing import Literal, get_args

Method = Literal[
    "relevance", "occlusion", "rollout", "attention", "faithfulness",
    "heads", "distance", "similarity", "pca", "lens", "position", "filters",
]  # fmt: skip
METHODS: tuple[Method, ...] = get_args(Method)

NEED_A_HEAD = frozenset({"relevance", "occlusion", "faithfulness", "lens"})
NEED_A_PICTURE = frozenset(METHODS) - {"position", "filters"}
