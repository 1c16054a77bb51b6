"""Parity with Google's vit_jax and big_vision, run with the same random weights.

For each model, the largest logit difference is reported in three cases. *Read*: Vitreous loads the JAX parameters,
saved with `np.savez`. *Written*: the JAX code loads a file written by Vitreous, with strict names and shapes.
*Resized*: both load that file at another image size, with resampled position embeddings.

Neither codebase is a package, so their repositories must be on the path:

    pip install jax flax tensorflow-cpu einops ml_collections pandas scipy tqdm
    git clone https://github.com/google-research/vision_transformer
    git clone https://github.com/google-research/big_vision
    PYTHONPATH=vision_transformer:big_vision python -m benchmarks.google_parity

Result with jax 0.10.2 and flax 0.12.8 on a CPU, where the largest logit is between 1 and 4: differences are at most
2e-6 without a ResNet. Random ResNets amplify float32 rounding, up to 4e-5 for the deepest. With `--double`, only the
encoders round to float32, because the JAX code requests it, and all differences are below 2e-6.
"""

import dataclasses
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro

import vitreous
from benchmarks.publish_table import publish

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

WIDTH, HEADS, MLP, DEPTH, CLASSES = 64, 2, 96, 2, 7
Tree = Mapping[str, Any]
Forward = Callable[[np.ndarray], np.ndarray]  # images [b, h, w, c] to logits


@dataclass(frozen=True)
class Options:
    """Benchmark options."""

    seed: int = 0
    double: bool = False  # weights and images in float64
    out: Path = Path("runs/bench/google_parity.json")


@dataclass(frozen=True)
class Case:
    """JAX model, given by its changes to the default config and the image sizes to test."""

    system: str
    name: str
    config: dict[str, Any] = dataclasses.field(default_factory=dict)
    size: tuple[int, int] = (64, 64)
    other: tuple[int, int] | None = (96, 96)  # the JAX code resamples only square grids
    entry: bool = False  # class token with a position embedding, as in big_vision files from before 2022


@dataclass(frozen=True)
class Result:
    system: str
    model: str
    read: float
    written: float
    resized: float | None
    largest_logit: float


def resnet(*layers: int) -> dict[str, Any]:
    from ml_collections import ConfigDict

    patch = (2, 2) if not layers else (1, 1)
    return {"resnet": ConfigDict({"num_layers": layers, "width_factor": 1}), "patches": ConfigDict({"size": patch})}


def cases() -> list[Case]:
    return [
        Case("vit_jax", "class token"),
        Case("vit_jax", "class token, 64 x 96", size=(64, 96), other=None),
        Case("vit_jax", "pre-logits", {"representation_size": 40}),
        Case("vit_jax", "pre-logits, no head", {"representation_size": 40, "num_classes": None}, other=None),
        Case("vit_jax", "average", {"classifier": "gap"}),
        Case("vit_jax", "R", resnet()),
        Case("vit_jax", "R26", resnet(2, 2, 2, 2), (128, 128), (192, 192)),
        Case("vit_jax", "R50 (3, 4, 9)", resnet(3, 4, 9)),
        Case("vit_jax", "R50 (3, 4, 6, 3)", resnet(3, 4, 6, 3), (128, 128), (192, 192)),
        Case("big_vision", "average"),
        Case("big_vision", "average, 64 x 96", size=(64, 96), other=None),
        Case("big_vision", "class token", {"pool_type": "tok"}),
        Case("big_vision", "class token with a position", {"pool_type": "tok"}, entry=True),
        Case("big_vision", "MAP", {"pool_type": "map"}),
        Case("big_vision", "MAP, no head", {"pool_type": "map", "num_classes": None}),
        Case("big_vision", "MAP, scanned", {"pool_type": "map", "scan": True}),
        Case("big_vision", "sin-cos, pre-logits", {"posemb": "sincos2d", "rep_size": 40}),
        Case("big_vision", "sin-cos, 64 x 96", {"posemb": "sincos2d", "pool_type": "tok"}, (64, 96), (96, 48)),
    ]


# ---- JAX models ------------------------------------------------------------------------------------------------------


def build_jax(case: Case) -> Any:
    if case.system == "vit_jax":
        from ml_collections import ConfigDict
        from vit_jax.models_vit import VisionTransformer

        transformer = ConfigDict({"mlp_dim": MLP, "num_heads": HEADS, "num_layers": DEPTH})
        usual = {"num_classes": CLASSES, "hidden_size": WIDTH, "patches": ConfigDict({"size": (16, 16)})}
        return VisionTransformer(**usual | {"transformer": transformer} | case.config)
    from big_vision.models.vit import Model

    usual = {"num_classes": CLASSES, "width": WIDTH, "depth": DEPTH, "num_heads": HEADS, "mlp_dim": MLP}
    return Model(**usual | {"patch_size": (16, 16)} | case.config)


def fresh(case: Case, size: tuple[int, int]) -> Tree:
    """Return the initial parameters of the JAX model."""
    import jax

    return build_jax(case).init(jax.random.key(0), np.zeros((1, *size, 3), np.float32), train=False)["params"]


def forward(case: Case, parameters: Tree) -> Forward:
    import jax

    model = build_jax(case)
    apply = jax.jit(lambda images: model.apply({"params": parameters}, images, train=False))
    if case.system == "vit_jax":
        return lambda images: np.asarray(apply(images))
    return lambda images: np.asarray(apply(images)[0])


def load_jax(case: Case, file: Path, size: tuple[int, int]) -> Tree:
    """Load a file with the JAX code, for images of `size`."""
    import jax

    expected = jax.tree.map(np.asarray, fresh(case, size))
    if case.system == "vit_jax":
        from ml_collections import ConfigDict
        from vit_jax import checkpoint

        stored = checkpoint.inspect_params(params=checkpoint.load(str(file)), expected=expected)
        if size == case.size:
            return stored
        # load_pretrained is made for fine-tuning and does not load the head.
        config = ConfigDict({"classifier": "token", **case.config})
        start = expected | {"head": stored["head"]}
        return checkpoint.load_pretrained(pretrained_path=str(file), init_params=start, model_config=config)
    from big_vision.models import vit

    return vit.load(expected, str(file), dict(case.config))


# ---- Comparison ------------------------------------------------------------------------------------------------------


def random_parameters(parameters: Tree, rng: np.random.Generator, dtype: type) -> dict[str, np.ndarray]:
    """Return random values for each parameter, scaled to keep activations near 1."""
    from flax.traverse_util import flatten_dict

    result = {}
    for name, value in flatten_dict(parameters, sep="/").items():
        inputs = np.prod(value.shape[:-1]) if name.endswith("kernel") else 25
        if name.endswith(("query/kernel", "key/kernel", "value/kernel")):
            inputs = value.shape[-3]
        numbers = rng.normal(size=value.shape) / np.sqrt(inputs)
        result[name] = (numbers + name.endswith("scale")).astype(dtype)
    return result


def random_images(rng: np.random.Generator, size: tuple[int, int], dtype: type) -> np.ndarray:
    return rng.uniform(-1, 1, (2, *size, 3)).astype(dtype)


def save(file: Path, arrays: dict[str, Any]) -> None:
    np.savez(file, **arrays)


def logits_of(model: torch.nn.Module, images: np.ndarray) -> np.ndarray:
    with torch.inference_mode():
        return model(torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()).numpy()


def compare(case: Case, rng: np.random.Generator, dtype: type, folder: Path) -> Result:
    arrays = random_parameters(fresh(case, case.size), rng, dtype)
    if case.entry:
        arrays["pos_embedding"] = np.pad(arrays["pos_embedding"], ((0, 0), (1, 0), (0, 0)), constant_values=0.5)
    prefix = "" if case.system == "vit_jax" else "params/"
    save(folder / "jax.npz", {prefix + name: array for name, array in arrays.items()})
    images = random_images(rng, case.size, dtype)
    expected = forward(case, load_jax(case, folder / "jax.npz", case.size))(images)

    model = vitreous.load(folder / "jax.npz", overrides={"image_size": case.size})
    read = np.abs(logits_of(model, images) - expected).max()

    file, format = folder / "vitreous.npz", "google" if case.system == "vit_jax" else "big_vision"
    vitreous.save(model, file, format=format)
    loaded = forward(case, load_jax(case, file, case.size))(images)
    written = np.abs(loaded - logits_of(model, images)).max()

    resized = None
    if case.other is not None:
        images = random_images(rng, case.other, dtype)
        loaded = forward(case, load_jax(case, file, case.other))(images)
        model = vitreous.load(file, image_size=case.other)
        resized = float(np.abs(loaded - logits_of(model, images)).max())
    return Result(case.system, case.name, float(read), float(written), resized, float(np.abs(expected).max()))


def main(options: Options) -> None:
    import jax

    jax.config.update("jax_enable_x64", options.double)
    rng, dtype = np.random.default_rng(options.seed), np.float64 if options.double else np.float32
    with tempfile.TemporaryDirectory() as folder:
        results = [compare(case, rng, dtype, Path(folder)) for case in cases()]
    rows = [
        [row.system, row.model, *("" if x is None else f"{x:.1e}" for x in (row.read, row.written, row.resized))]
        for row in results
    ]
    setting = f"width {WIDTH}, {DEPTH} layers, {HEADS} heads: largest logit difference"
    publish(setting, ["system", "model", "read", "written", "resized"], rows, results, options.out)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
