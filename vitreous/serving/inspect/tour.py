"""The tour: one picture taken through equations 1 to 4 in eight steps, each with the tensor that is really there.

n: patches; t = p + n: tokens, prefix and patches; d: width.
"""

from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vitreous.explanation.capture import Walk
from vitreous.model.block import Block
from vitreous.model.config import ViTConfig
from vitreous.model.patch import cut
from vitreous.model.position import AddedPosition
from vitreous.serving.inspect.responses import plain

SAMPLE = 6  # numbers that are shown of each tensor


@torch.no_grad()
def tour(walk: Walk, image: Float[Tensor, "1 c h w"]) -> dict[str, Any]:
    """Shapes without the batch. `sample` is the beginning of the first row, but for attention of its first head."""
    model, config = walk.model, walk.model.config
    pixels = patch_pixels(walk, image)
    projected, _ = model.patches(model.stem(image))
    tokens = model.prefix(projected)
    first, block = walk.states[0], cast(Block, model.encoder.blocks[0])
    terms = model.position.attend(walk.layout, image.device)
    gathered = first + block.attention_scale(block.attention(block.attention_norm(first), terms))  # equation 2
    features = walk.features()
    pooled = model.pool(features)
    sequence = (
        "[x_class; x_p E]" if config.class_token else "[registers; x_p E]" if config.num_prefix_tokens else "x_p E"
    )
    answer = _step(4, "answer", "y", pooled[0], pooled=type(config.pool).__name__)
    if config.num_classes:
        scores = model.classify(features)[0]
        answer |= {"scores": _facts(scores), "classes": config.num_classes}
    t = tokens.shape[1]
    attention = _step(2, "attention", "A", _first_attention(walk), layer=0) | {"shape": [config.num_heads, t, t]}
    added = isinstance(model.position, AddedPosition)
    steps = [
        _step(1, "patches", "x_p", pixels[0], grid=list(walk.layout.grid), patch=list(config.patch_size)),
        _step(1, "projection", "x_p E", projected[0], weight=[pixels.shape[-1], config.width]),
        _step(1, "prefix", sequence, tokens[0], tokens=prefix_names(config)),
        _step(1, "position", "z_0", first[0], kind=type(config.position).__name__, added=added),
        attention,
        _step(2, "residual", "z'_1", gathered[0], layer=0),
        _step(3, "mlp", "z_1", walk.states[1][0], layer=0, hidden=config.mlp_width, repeat=config.depth),
        answer,
    ]
    return {"steps": steps}


def patch_pixels(walk: Walk, image: Float[Tensor, "1 c h w"]) -> Float[Tensor, "1 n pixels"]:
    """The patches before anything is done to them; of a hybrid, what its stem has made of the pixels."""
    seen, (ph, pw), (gh, gw) = walk.model.stem(image), walk.model.config.patch_size, walk.layout.grid
    return cut(F.pad(seen, (0, gw * pw - seen.shape[3], 0, gh * ph - seen.shape[2])), (ph, pw))


def prefix_names(config: ViTConfig) -> list[str]:
    """The tokens before the patches, in their order."""
    named = ["class"] * config.class_token + ["distillation"] * config.distillation_token
    return named + [f"register {i + 1}" for i in range(config.registers)]


def _first_attention(walk: Walk) -> Float[Tensor, "heads q t"]:
    """Of the first layer, the first rows: all of them where that is little."""
    return next(walk.layer(0).chunks())[1][0]


def _step(equation: int, name: str, symbol: str, values: Tensor, **more: Any) -> dict[str, Any]:
    return {"equation": equation, "name": name, "symbol": symbol, **_facts(values), **more}


def _facts(values: Tensor) -> dict[str, Any]:
    values = values.float()
    numbers = (values.mean(), values.std(correction=0), values.min(), values.max())
    stats = dict(zip(("mean", "std", "min", "max"), plain(torch.stack(numbers)), strict=True))
    first = values.flatten()[: min(SAMPLE, values.shape[-1])]
    return {"shape": list(values.shape), "stats": stats, "sample": plain(first)}
