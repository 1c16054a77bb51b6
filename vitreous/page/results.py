"""Results that the page shows for an image: predictions, importance maps and their tests, distances.

Numbers in JSON are finite and have six significant digits. Attention and similarity are computed for all tokens at
once, so that the page needs no requests while the mouse moves.

n: patches; p: prefix tokens; t = p + n: all tokens; d: width.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor

from vitreous.common.checks import Size
from vitreous.explanation.attention_and_logit_lens import (
    CHUNK,
    CapturedForward,
    attention_distance,
    distances,
    lens_layers,
    no_step,
)
from vitreous.explanation.draw import Box, model_region
from vitreous.explanation.pca_and_similarity import component_map, cosines, pca_colours, position_similarity
from vitreous.explanation.rollout_relevance_occlusion import Faithfulness, Fusion, rollout_map
from vitreous.inference.engine import NOT_A_NUMBER
from vitreous.inference.predictor import familiarity_ranks
from vitreous.model.base_config import ModelConfig
from vitreous.model.calibration import UNKNOWN
from vitreous.model.protocol import Model
from vitreous.model.tokens import Features
from vitreous.model.top_labels import class_probabilities, top_labels

TOP, TOP_OF_A_LAYER = 5, 3  # classes


class NotFinite(ValueError):
    """A result contains NaN or infinity."""


def rounded(values: Float[Tensor, "*shape"]) -> Any:
    """Convert a tensor to nested lists of numbers with six significant digits, which keeps responses small."""
    if not values.isfinite().all():
        raise NotFinite(NOT_A_NUMBER)

    def six_digits(value: Any) -> Any:
        return [six_digits(part) for part in value] if isinstance(value, list) else float(f"{value:.6g}")

    return six_digits(values.detach().float().tolist())


def class_entry(labels: Sequence[str], index: int) -> dict[str, Any]:
    return {"index": index, "label": labels[index]}


def top_classes(labels: Sequence[str], probabilities: Float[Tensor, "classes"], count: int) -> list[dict[str, Any]]:
    """Return the `count` most probable classes, with their labels and probabilities."""
    [best] = top_labels(probabilities[None], labels, count)
    values = rounded(torch.tensor([label.probability for label in best]))
    return [{**class_entry(labels, top.index), "probability": value} for top, value in zip(best, values, strict=True)]


def predictions(
    model: Model, logits: Float[Tensor, "classes"], pooled: Float[Tensor, "1 d"], labels: Sequence[str]
) -> dict[str, Any]:
    """Return the top classes, and True as `unknown` if the image is unlike the training images.

    If the model has not been calibrated, `unknown` is None.
    """
    calibration, unknown = model.config.calibration, None
    if calibration is not None and model.familiarity is not None:
        familiar = model.familiarity.to(pooled.device).scores(pooled)
        unknown = familiarity_ranks(calibration, familiar)[0] < UNKNOWN
    return {"predictions": top_classes(labels, class_probabilities(logits, model.config), TOP), "unknown": unknown}


def covered_box(config: ModelConfig, image: Size) -> Box:
    """Return the region that the patch grid covers, in image pixels. Padding extends the region beyond the image."""
    box = model_region(image, config.image_size, config.preprocessing)
    if not config.backbone.has_attention:
        return box
    (gh, gw), (ph, pw), (h, w) = config.backbone.map_grid, config.backbone.map_stride, config.image_size
    return Box(box.top, box.left, box.height * gh * ph / h, box.width * gw * pw / w)


def picture(config: ModelConfig, image: Size) -> dict[str, Any]:
    """Return the size of an image, the region that the model sees, and the patch grid."""
    box = covered_box(config, image)
    return {
        "picture": {"width": image[1], "height": image[0]},
        "seen": {key: round(value, 3) for key, value in box._asdict().items()},
        "grid": list(config.backbone.map_grid) if config.backbone.has_attention else [0, 0],
    }


def lens(captured: CapturedForward, labels: Sequence[str]) -> dict[str, Any]:
    """Return the top classes that the head predicts from the tokens after each layer."""
    probabilities = class_probabilities(captured.lens()[:, 0], captured.model.config)
    rows = [top_classes(labels, row, TOP_OF_A_LAYER) for row in probabilities]
    layers = lens_layers(captured.model.config, None)
    return {"layers": [{"layer": layer, "predictions": row} for layer, row in zip(layers, rows, strict=True)]}


# ---- Maps ------------------------------------------------------------------------------------------------------------


def rollout(captured: CapturedForward, fusion: Fusion, discard: float, layer: int) -> dict[str, Any]:
    """Return the rollout from the first layer to `layer`."""
    return as_map("rollout", rollout_map(captured, range(layer + 1), fusion, discard)[0])


def layer_attention(captured: CapturedForward, layer: int) -> dict[str, Any]:
    return as_map("attention", captured.attention_map(layer)[0])


def as_map(method: str, values: Float[Tensor, "gh gw"], target: dict[str, Any] | None = None) -> dict[str, Any]:
    numbers = {"values": rounded(values.flatten()), "range": rounded(torch.stack([values.min(), values.max()]))}
    return {"method": method, "target": target, "grid": list(values.shape), **numbers}


def components(captured: CapturedForward, layer: int) -> dict[str, Any]:
    """Return three principal components of the patch features as red, green and blue."""
    colours = component_map(captured, layer)
    grid = list(captured.layout.grid)
    return {"method": "pca", "target": None, "grid": grid, "rgb": rounded(colours.flatten()), "range": [0.0, 1.0]}


def distance(captured: CapturedForward, between: Callable[[], None] = no_step) -> dict[str, Any]:
    """Return attention distances in input pixels. `largest` is the distance between patches in opposite corners."""
    config = captured.model.config
    corner = distances(config.map_grid, config.map_stride, slice(0, 1))[0, -1]
    found = attention_distance(captured, between=between)
    return {"pixels": [rounded(row[~row.isnan()]) for row in found], "largest": rounded(corner)}


def faithfulness_curves(result: Faithfulness, random: Faithfulness) -> dict[str, Any]:
    """Return the deletion and insertion results of a map, and the mean over random orders."""

    def curves(of: Faithfulness) -> dict[str, Any]:
        return {
            "deletion": {"auc": of.deletion, "curve": rounded(of.deletion_curve)},
            "insertion": {"auc": of.insertion, "curve": rounded(of.insertion_curve)},
        }

    return {"shares": rounded(result.fractions), **curves(result), "random": curves(random)}


# ---- Bytes -----------------------------------------------------------------------------------------------------------


def attention_bytes(captured: CapturedForward, layer: int) -> bytes:
    """Encode attention as two arrays: float32 [heads, t, 2] and uint8 [heads, t, m].

    The first array contains the largest weight of each row for prefix tokens and for patches. The second array contains
    each weight divided by the largest weight. Prefix tokens and patches have separate scales, because a class token or
    register can receive nearly all attention, and the other weights would then vanish in 8 bits. If tokens attend only
    to their window, a third array between the two contains the tokens that each token attends to: int32 [t, m].
    """
    heads, t, m, *_ = captured.model.config.attention_shapes[layer]
    prefix, places = captured.layout.num_prefix_tokens, captured.layers[layer].keys
    between = b"" if places is None else places.cpu().numpy().astype("<i4").tobytes()
    data = bytearray(8 * heads * t) + between + bytearray(heads * t * m)
    scales = np.frombuffer(data, "<f4", heads * t * 2).reshape(heads, t, 2)
    fractions = np.frombuffer(data, np.uint8, offset=8 * heads * t + len(between)).reshape(heads, t, m)
    for rows, weights in captured.chunks(layer):
        for scale, keys in enumerate((slice(0, prefix), slice(prefix, m))):
            block = weights[0, :, :, keys].float()
            if not block.shape[-1]:
                continue
            largest = block.amax(dim=-1)
            scales[:, rows, scale] = largest.cpu().numpy()
            part = block / largest.clamp_min(1e-30)[..., None]
            fractions[:, rows, keys] = (part * 255).round().to(torch.uint8).cpu().numpy()
    return bytes(data)


def attention_rows(captured: CapturedForward, query: int | None) -> tuple[bytes, Size]:
    """Encode the attention of one query in all layers and heads: float32 [rows, 2] and uint8 [rows, t].

    There is one row for each head of each layer, with scales as in `attention_bytes`, and one column for each token of
    the map, also in layers whose patches are larger. `query` is one of these tokens; None is the mean over all patches.
    Return the bytes and the shape of the second array.
    """
    prefix, (_, width) = captured.layout.num_prefix_tokens, captured.layout.grid
    place: int | Size | Literal["patches"] = "patches"
    if query is not None:
        place = query if query < prefix else divmod(query - prefix, width)
    found = []
    for layer in range(len(captured.layers)):
        weights = captured.attention_from(layer, place)[0]
        found.append(torch.cat([weights[:, :prefix], captured.on_map(weights, layer).flatten(1)], dim=1))
    rows = torch.cat(found)
    parts = [rows[:, :prefix], rows[:, prefix:]]
    largest = [part.amax(dim=1, keepdim=True) if part.shape[1] else rows.new_zeros(len(rows), 1) for part in parts]
    fractions = torch.cat([part / most.clamp_min(1e-30) for part, most in zip(parts, largest, strict=True)], dim=1)
    scales = torch.cat(largest, dim=1).cpu().numpy().astype("<f4")
    return scales.tobytes() + (fractions * 255).round().to(torch.uint8).cpu().numpy().tobytes(), (
        len(rows),
        rows.shape[1],
    )


def similarity_bytes(features: Features) -> UInt8[np.ndarray, "t t"]:
    """Encode the cosine similarity of every pair of tokens."""
    t = features.prefix.shape[1] + features.patches.shape[1]
    data = np.empty((t, t), np.uint8)
    step = max(CHUNK // t, 1)
    for start in range(0, t, step):
        rows = slice(start, start + step)
        data[rows] = signed_bytes(cosines(features, rows)[0])
    return data


def signed_bytes(values: Float[Tensor, "*shape"]) -> UInt8[np.ndarray, "*shape"]:
    """Encode numbers from -1 to 1 as bytes. To decode, compute byte / 127.5 - 1.

    >>> signed_bytes(torch.tensor([-1.0, 0.0, 1.0])).tolist()
    [0, 128, 255]
    """
    return ((values + 1) * 127.5).round().clamp(0, 255).to(torch.uint8).cpu().numpy()


def match_bytes(first: CapturedForward, second: CapturedForward, layer: int) -> UInt8[np.ndarray, "n n"]:
    """Encode the cosine similarity of each patch of an image and each patch of another one."""
    a, b = (F.normalize(captured.features(layer).patches[0].float(), dim=-1) for captured in (first, second))
    return signed_bytes(a @ b.T)


def joint_components(first: CapturedForward, second: CapturedForward, layer: int) -> dict[str, Any]:
    """Return three principal components of the patches of two images, so that a colour means the same in both."""
    patches = [captured.features(layer).patches[0] for captured in (first, second)]
    gh, gw = first.layers[layer].layout.grid
    colours = pca_colours(torch.cat(patches), (2 * gh, gw)).reshape(2, -1)
    return {"grid": [gh, gw], "first": rounded(colours[0]), "second": rounded(colours[1])}


def position_bytes(model: Model) -> UInt8[np.ndarray, "n n"] | None:
    """Encode the similarity of all positions, or return None if they cannot be compared."""
    similarity = position_similarity(model)
    if similarity.values is None:
        return None
    n = similarity.values.shape[0] * similarity.values.shape[1]
    flat = similarity.values.reshape(n, n)
    return signed_bytes(flat if similarity.bounded else flat / flat.abs().max().clamp_min(1e-30))
