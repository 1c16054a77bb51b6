"""Results of an explanation, and the functions that compute them for the requested methods.

gh, gw: grid height and width.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from vitreous.common.checks import BadValue, Size, check_choice, check_whole, fail, suggestion
from vitreous.explanation.attention_and_logit_lens import (
    CapturedForward,
    attention_distance,
    by_head,
    layer_indices,
    lens_layers,
    token_index,
)
from vitreous.explanation.methods import ATTENTION_METHODS, HEAD_METHODS, IMAGE_METHODS, MAPS, METHODS, MapName, Method
from vitreous.explanation.pca_and_similarity import (
    FilterComponents,
    PositionSimilarity,
    component_map,
    filter_components,
    foreground,
    position_similarity,
    token_similarity,
)
from vitreous.explanation.rollout_relevance_occlusion import (
    BATCH,
    Faithfulness,
    faithfulness,
    importance_map,
    random_faithfulness,
)
from vitreous.inference.engine import NOT_A_NUMBER
from vitreous.model.base_config import ModelConfig
from vitreous.model.protocol import Model
from vitreous.model.tokens import Layout
from vitreous.model.top_labels import Label, class_names, class_probabilities, top_labels

TOP = 5  # predictions
FEWEST_INSIDE = 8  # minimum number of foreground patches for a meaningful PCA


@dataclass(frozen=True)
class LensRow:
    """Top prediction after a layer, and the probability of the explained class."""

    layer: int
    label: str
    probability: float
    of_target: float


@dataclass
class Explanation:
    """Results of an explanation. A field is empty or None if its method was not run."""

    layers: list[int]
    heads: list[int]
    query: Size | None = None  # row and column of a patch
    target: int | None = None  # index of the explained class
    label: str | None = None  # label of the explained class
    predictions: tuple[Label, ...] = ()
    maps: dict[MapName, Float[np.ndarray, "gh gw"]] = field(default_factory=dict)
    faithfulness: dict[str, Faithfulness] = field(default_factory=dict)  # for each map and "random"
    head_maps: Float[np.ndarray, "layers heads gh gw"] | None = None  # NaN for heads that a layer lacks
    distance: Float[np.ndarray, "layers heads"] | None = None  # in pixels; NaN for heads that a layer lacks
    similarity: Float[np.ndarray, "some gh gw"] | None = None  # to patch `similarity_to`
    similarity_to: Size = (0, 0)
    similarity_layers: list[int] = field(default_factory=list)
    pca: Float[np.ndarray, "gh gw 3"] | None = None  # RGB colours from 0 to 1
    pca_foreground: Float[np.ndarray, "gh gw 3"] | None = None  # NaN in the background
    lens: list[LensRow] = field(default_factory=list)
    lens_curves: dict[str, list[float]] = field(default_factory=dict)  # label to its probability after each layer
    position: PositionSimilarity | None = None
    filters: FilterComponents | None = None
    skipped: dict[str, str] = field(default_factory=dict)  # method to reason
    paths: list[Path] = field(default_factory=list)  # written files

    def numbers(self) -> dict[str, Any]:
        """Return the contents of numbers.json."""
        distance = [] if self.distance is None else [row[~np.isnan(row)].tolist() for row in self.distance]
        tests = self.faithfulness.items()
        return {
            "class": self.label,
            "predictions": [vars(label) for label in self.predictions],
            "faithfulness": {key: {"deletion": test.deletion, "insertion": test.insertion} for key, test in tests},
            "attention_distance": dict(zip(self.layers, distance, strict=False)),
            "lens": [vars(row) for row in self.lens],
            "left_out": self.skipped,
        }

    def skipped_by_reason(self) -> dict[str, list[str]]:
        reasons: dict[str, list[str]] = {}
        for method, reason in self.skipped.items():
            reasons.setdefault(reason, []).append(method)
        return reasons


def class_index(config: ModelConfig, name: str | int | None, field: str = "class") -> int | None:
    """Return the index of a class, given its label or its index. Error messages refer to the argument as `field`."""
    if name is None:
        return None
    name, labels, count = str(name), config.labels, config.num_classes
    if not count:
        raise BadValue(f"{field} is {name!r}, but the model has no classification head")
    if name in labels:
        return labels.index(name)
    if len(name) <= 9 and name.isdecimal() and int(name) < count:  # int() rejects very long numbers
        return int(name)
    known = f"one of the model's labels{suggestion(name, labels)} or " if labels else ""
    raise BadValue(f"{field} must be {known}an integer from 0 to {count - 1}, got {name[:40]!r}")


def available_methods(
    config: ModelConfig, has_image: bool, requested: Sequence[str]
) -> tuple[list[Method], dict[str, str]]:
    """Return the methods to run, and the reasons for skipping others. Raise BadValue if a request is unavailable."""
    for method in requested:
        check_choice("methods", method, METHODS)
    missing: dict[str, str] = {}
    for method in METHODS:
        if not has_image and method in IMAGE_METHODS:
            missing[method] = "no image was given"
        elif not config.num_classes and method in HEAD_METHODS:
            missing[method] = "the model has no classification head"
        elif not config.output_kind.classes and method in HEAD_METHODS - {"relevance"}:
            missing[method] = "the model predicts numbers, not class probabilities"
        elif not config.has_attention and method in ATTENTION_METHODS:
            missing[method] = "the model has no attention layers"
        if method in requested and method in missing:
            raise BadValue(f"method {method!r} is not available: {missing[method]}")
    if "faithfulness" in requested and not set(MAPS) & set(requested):
        raise BadValue(f"the method 'faithfulness' requires a map to test; add a map method, such as {MAPS[0]!r}")
    chosen = [method for method in METHODS if method not in missing and (not requested or method in requested)]
    return chosen, {} if requested else missing


def request(
    config: ModelConfig,
    target: str | int | None = None,
    layers: Sequence[int] = (),
    heads: Sequence[int] = (),
    query: Sequence[int] = (),
) -> Explanation:
    """Check the arguments and return an explanation without results."""
    most = max((shape.heads for shape in config.attention_shapes), default=0)
    for head in heads:
        check_whole("head", head, 0, most - 1)
    if query and len(query) != 2:
        fail("query", " ".join(map(str, query)), "two integers: the row and column of a patch")
    place = (query[0], query[1]) if query else None
    if place is not None:
        token_index(Layout(config.num_prefix_tokens, config.map_grid), place)
    index = class_index(config, target)
    label = None if index is None else class_names(config)[index]
    return Explanation(layer_indices(config, layers), list(heads) or list(range(most)), place, index, label)


def compute(
    result: Explanation,
    model: Model,
    captured: CapturedForward | None,
    methods: Sequence[str],
    batch_size: int = BATCH,
    begin: Callable[[str], None] = lambda method: None,
) -> None:
    """Run the methods and store the results in `result`.

    `captured` is None if there is no image. `begin` is called with the name of each method before it runs.
    """
    maps: dict[MapName, Tensor] = {}
    if captured is not None:
        if captured.model.config.output_kind.classes:
            probabilities = class_probabilities(captured.logits(), captured.model.config)
            if not probabilities.isfinite().all():
                raise ValueError(NOT_A_NUMBER)
            [result.predictions] = top_labels(probabilities, class_names(captured.model.config), TOP)
            if result.target is None:
                result.target, result.label = result.predictions[0].index, result.predictions[0].label
        elif captured.model.config.num_classes and result.target is None:
            result.target, result.label = 0, class_names(captured.model.config)[0]
        for name in MAPS:
            if name in methods:
                begin(name)
                maps[name] = importance_map(captured, name, result.target, batch_size)
                result.maps[name] = maps[name].cpu().numpy()
    for method in methods:
        begin(method)
        if method == "filters":
            result.filters = filter_components(model)
        elif method == "position":
            result.position = position_similarity(model)
            if result.position.values is None:
                result.skipped[method] = result.position.text
        elif captured is not None and method not in maps:
            _compute_from(captured, result, method, maps, batch_size)


def _compute_from(
    captured: CapturedForward, result: Explanation, method: str, maps: dict[MapName, Tensor], batch_size: int
) -> None:
    layers, target, (gh, gw) = result.layers, result.target, captured.layout.grid
    match method:
        case "faithfulness" if maps and target is not None:
            for name, values in maps.items():
                result.faithfulness[name] = faithfulness(captured, target, values, batch_size=batch_size)
            result.faithfulness["random"] = random_faithfulness(captured, target, batch_size=batch_size)
        case "heads":
            rows = [captured.on_map(captured.attention_from(layer, result.query)[0], layer) for layer in layers]
            result.head_maps = by_head(rows)[:, result.heads].cpu().numpy()
        case "distance":
            result.distance = attention_distance(captured, layers).cpu().numpy()
        case "similarity":
            best = next(iter(maps.values()), None)
            peak = (gh // 2, gw // 2) if best is None else divmod(int(best.argmax()), gw)
            result.similarity_to = result.query or peak
            some = np.linspace(0, len(layers) - 1, min(len(layers), 4)).round().astype(int)
            result.similarity_layers = [layers[index] for index in some]
            found = token_similarity(captured, result.similarity_to, result.similarity_layers)
            result.similarity = found[:, 0].cpu().numpy()
        case "pca":
            last = layers[-1] if layers else -1
            _, patches, grid, _ = captured.features(last)
            result.pca = component_map(captured, last).cpu().numpy()
            _, inside = foreground(patches[0], grid)
            if int(inside.sum()) >= FEWEST_INSIDE:
                result.pca_foreground = component_map(captured, last, inside).cpu().numpy()
        case "lens" if target is not None:
            names, layers = class_names(captured.model.config), lens_layers(captured.model.config, layers)
            if not layers:
                result.skipped[method] = "the head reads only tokens of the last stage"
                return
            probabilities = class_probabilities(captured.lens(layers)[:, 0], captured.model.config).cpu()
            ranked = top_labels(probabilities, names, TOP)
            for layer, (first, *_), row in zip(layers, ranked, probabilities, strict=True):
                result.lens.append(LensRow(layer, first.label, first.probability, float(row[target])))
            for index in dict.fromkeys([target, *(label.index for label in ranked[-1])]):
                result.lens_curves[names[index]] = probabilities[:, index].tolist()
