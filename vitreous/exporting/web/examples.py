"""Example images of the exported page, with precomputed results, which are shown before the model is loaded."""

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageOps

from vitreous.common.text import clean, json_text
from vitreous.data.image import fit
from vitreous.data.image.decoding import UnreadableImage, decode_errors
from vitreous.explanation.attention_and_logit_lens import CapturedForward, capture
from vitreous.explanation.pca_and_similarity import cosines
from vitreous.explanation.rollout_relevance_occlusion import importance_map
from vitreous.inference.engine import model_input
from vitreous.model.vit import ViT
from vitreous.page import STATIC, results

LONGEST = 640  # pixels of the longer side
BUILT_IN = ("balloon", "oranges", "lighthouse")


@dataclass(frozen=True)
class Example:
    """An image in WebP format. `name` is used in URLs, `label` is shown."""

    name: str
    label: str
    data: bytes


def load_examples(paths: Sequence[Path] = ()) -> list[Example]:
    """Read images and shrink them, or return the built-in examples if there are no paths."""
    if not paths:
        return [
            Example(name, name.capitalize(), (STATIC / "examples" / f"{name}.webp").read_bytes()) for name in BUILT_IN
        ]
    examples: list[Example] = []
    for path in paths:
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", path.stem).strip("-") or "image"
        if any(name == other.name for other in examples):
            name = f"{name}-{len(examples) + 1}"
        examples.append(Example(name[:60], clean(path.stem.replace("_", " "))[:60], _shrunk(path)))
    return examples


def _shrunk(path: Path) -> bytes:
    try:
        with decode_errors(), Image.open(path) as opened:
            image = ImageOps.exif_transpose(opened)
            image.thumbnail((LONGEST, LONGEST))
            stored = io.BytesIO()
            image.convert("RGB").save(stored, "WEBP", quality=88)
    except UnreadableImage as error:
        raise ValueError(f"{path}: {error}") from None
    return stored.getvalue()


def preprocessed(model: ViT, data: bytes) -> torch.Tensor:
    """Return the model input for an encoded image."""
    config = model.config
    pixels = fit(data, config.image_size, config.preprocessing, config.channels)
    return model_input(pixels[None], torch.device("cpu"), config.preprocessing)


def write_example(model: ViT, labels: Sequence[str], example: Example, folder: Path) -> CapturedForward:
    """Write an image with its results: NAME.webp, NAME.json and NAME.bin. Return its forward pass.

    NAME.bin contains the attention of the last layer [heads, t, t], then the similarity of its tokens [t, t], both in
    float32. The keys in NAME.json are those that the page uses for its requests.
    """
    captured = capture(model, preprocessed(model, example.data))
    last = model.config.depth - 1
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
