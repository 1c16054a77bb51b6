"""Example images of the exported page, with precomputed results, which are shown before the model is loaded."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from vitreous.common.text import json_text
from vitreous.data.image import fit
from vitreous.explanation.attention_and_logit_lens import CapturedForward, capture
from vitreous.explanation.pca_and_similarity import cosines
from vitreous.explanation.rollout_relevance_occlusion import importance_map
from vitreous.inference.forward_pass import model_input
from vitreous.model.protocol import Model
from vitreous.page import results
from vitreous.page.examples import Example


def preprocessed(model: Model, data: bytes) -> torch.Tensor:
    """Return the model input for an encoded image."""
    config = model.config
    pixels = fit(data, config.image_size, config.preprocessing, config.channels)
    return model_input(pixels[None], torch.device("cpu"), config.preprocessing)


def write_example(model: Model, labels: Sequence[str], example: Example, folder: Path) -> CapturedForward:
    """Write an image with its results: NAME.webp, NAME.json and NAME.bin. Return its forward pass.

    NAME.bin contains the attention of the last layer [heads, t, m], then the similarity of its tokens [t, t], both in
    float32. The keys in NAME.json are those that the page uses for its requests.
    """
    captured = capture(model, preprocessed(model, example.data))
    last = len(captured.layers) - 1
    with Image.open(io.BytesIO(example.data)) as image:
        size = (image.height, image.width)
    summary: dict[str, Any] = {"id": example.name, **results.picture(model.config, size)}
    summary |= {"predictions": None, "unknown": None, "segments": None}
    found: dict[str, Any] = {
        "distance": results.distance(captured),
        "map/rollout?fusion=mean&discard=0": results.rollout(captured, "mean", 0.0, last),
        f"map/pca?layer={last}": results.components(captured, last),
    }
    if model.config.output_kind.classes:
        pooled = model.pool_features(captured.features())
        summary |= results.predictions(model, captured.logits()[0], pooled, labels)
        found["lens"] = results.lens(captured, labels)
        target = summary["predictions"][0]["index"]
        for method in ("relevance", "occlusion"):
            values = importance_map(captured, method, target, overlap=False)
            found[f"map/{method}?target={target}"] = results.as_map(method, values, results.class_entry(labels, target))
    arrays = (captured.weights(last)[0], cosines(captured.features())[0])
    (folder / f"{example.name}.webp").write_bytes(example.data)
    (folder / f"{example.name}.json").write_text(json_text({"summary": summary, "results": found}), encoding="utf-8")
    (folder / f"{example.name}.bin").write_bytes(b"".join(array.numpy().astype("<f4").tobytes() for array in arrays))
    return captured
