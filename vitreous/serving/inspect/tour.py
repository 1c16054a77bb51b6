"""The tour: one image taken through equations 1 to 4 in eight steps, each with its tensor.

n: patches; t = p + n: tokens, prefix and patches; d: width.
"""

from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vitreous.explanation.captured import CapturedForward
from vitreous.model.block import Block
from vitreous.model.config import ViTConfig
from vitreous.model.patch import cut
from vitreous.model.position import AddedPosition
from vitreous.serving.inspect.responses import rounded

SAMPLE = 6  # numbers of each tensor


@torch.no_grad()
def tour(captured: CapturedForward) -> dict[str, Any]:
    """Shapes without the batch. `sample` is the beginning of the first row; of attention, that of the first head."""
    model, config, image = captured.model, captured.model.config, captured.images
    pixels = patch_pixels(captured)
    projected, _ = model.patches(model.stem(image))
    tokens = model.prefix(projected)
    first, block = captured.states[0], cast(Block, model.encoder.blocks[0])
    terms = model.position.attend(captured.layout, image.device)
    attended = first + block.attention_scale(block.attention(block.attention_norm(first), terms))  # equation 2
    pooled = model.pool(captured.features())
    sequence = "x_p E"
    if config.num_prefix_tokens:
        sequence = "[x_class; x_p E]" if config.class_token else "[registers; x_p E]"
    answer = _step(4, "answer", "y", pooled[0], pooled=type(config.pool).__name__)
    if config.num_classes:
        answer |= {"scores": _facts(captured.logits()[0]), "classes": config.num_classes}
    t, first_rows = tokens.shape[1], next(captured.layer(0).chunks())[1][0]  # all rows if they are few
    attention = _step(2, "attention", "A", first_rows, layer=0) | {"shape": [config.num_heads, t, t]}
    added = isinstance(model.position, AddedPosition)
    steps = [
        _step(1, "patches", "x_p", pixels[0], grid=list(captured.layout.grid), patch=list(config.patch_size)),
        _step(1, "projection", "x_p E", projected[0], weight=[pixels.shape[-1], config.width]),
        _step(1, "prefix", sequence, tokens[0], tokens=prefix_names(config)),
        _step(1, "position", "z_0", first[0], kind=type(config.position).__name__, added=added),
        attention,
        _step(2, "residual", "z'_1", attended[0], layer=0),
        _step(3, "mlp", "z_1", captured.states[1][0], layer=0, hidden=config.mlp_width, repeat=config.depth),
        answer,
    ]
    return {"steps": steps}


def patch_pixels(captured: CapturedForward) -> Float[Tensor, "1 n pixels"]:
    """The patches before the projection: pixels, or in a hybrid the stem's feature map."""
    whole, (ph, pw), (gh, gw) = (
        captured.model.stem(captured.images),
        captured.model.config.patch_size,
        captured.layout.grid,
    )
    return cut(F.pad(whole, (0, gw * pw - whole.shape[3], 0, gh * ph - whole.shape[2])), (ph, pw))


def prefix_names(config: ViTConfig) -> list[str]:
    """Names of the tokens before the patches, in order."""
    named = ["class"] * config.class_token + ["distillation"] * config.distillation_token
    return named + [f"register {i + 1}" for i in range(config.registers)]


def _step(equation: int, name: str, symbol: str, values: Tensor, **more: Any) -> dict[str, Any]:
    return {"equation": equation, "name": name, "symbol": symbol, **_facts(values), **more}


def _facts(values: Tensor) -> dict[str, Any]:
    values = values.float()
    numbers = (values.mean(), values.std(correction=0), values.min(), values.max())
    stats = dict(zip(("mean", "std", "min", "max"), rounded(torch.stack(numbers)), strict=True))
    first = values.flatten()[: min(SAMPLE, values.shape[-1])]
    return {"shape": list(values.shape), "stats": stats, "sample": rounded(first)}
