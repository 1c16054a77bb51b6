"""A timm model's weights in flax's layout, converted independently of the code under test."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Arrays = dict[str, np.ndarray]


def saved(path: Path, arrays: Arrays) -> Path:
    np.savez(path, **arrays)
    return path


def unknown(model: nn.Module) -> nn.Module:
    """Fill a model with NaN, so that parameters that are not loaded are detected."""
    for parameter in model.parameters():
        nn.init.constant_(parameter, math.nan)
    return model


def array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().numpy()


def dense(layer: nn.Linear, name: str) -> Arrays:
    return {f"{name}/kernel": array(layer.weight).T, f"{name}/bias": array(layer.bias)}


def norm(layer: Any, name: str) -> Arrays:
    return {f"{name}/scale": array(layer.weight), f"{name}/bias": array(layer.bias)}


def convolution(layer: Any, name: str) -> Arrays:
    return {f"{name}/kernel": array(layer.weight).transpose(2, 3, 1, 0)}


def projection(weight: Tensor, bias: Tensor, heads: int, name: str) -> Arrays:
    """Convert a query, key or value projection, with its matrix reshaped from [D, D] to (D, H, d)."""
    width = weight.shape[1]
    kernel = array(weight).T.reshape(width, heads, -1)
    return {f"{name}/kernel": kernel, f"{name}/bias": array(bias).reshape(heads, -1)}


def output(layer: nn.Linear, heads: int, name: str) -> Arrays:
    """Convert the output projection of attention, with its matrix reshaped from [D, D] to (H, d, D)."""
    kernel = array(layer.weight).T.reshape(heads, -1, layer.out_features)
    return {f"{name}/kernel": kernel, f"{name}/bias": array(layer.bias)}


def block_arrays(block: Any, heads: int, attention: int, mlp_norm: int, mlp: int) -> Arrays:
    name = f"MultiHeadDotProductAttention_{attention}"
    arrays = norm(block.norm1, "LayerNorm_0") | norm(block.norm2, f"LayerNorm_{mlp_norm}")
    weights, biases = block.attn.qkv.weight.chunk(3), block.attn.qkv.bias.chunk(3)
    for part, weight, bias in zip(("query", "key", "value"), weights, biases, strict=True):
        arrays |= projection(weight, bias, heads, f"{name}/{part}")
    arrays |= output(block.attn.proj, heads, f"{name}/out")
    return arrays | dense(block.mlp.fc1, f"MlpBlock_{mlp}/Dense_0") | dense(block.mlp.fc2, f"MlpBlock_{mlp}/Dense_1")


def map_arrays(pool: Any, heads: int) -> Arrays:
    name = "MAPHead_0/MultiHeadDotProductAttention_0"
    arrays = {"MAPHead_0/probe": array(pool.latent)} | norm(pool.norm, "MAPHead_0/LayerNorm_0")
    arrays |= projection(pool.q.weight, pool.q.bias, heads, f"{name}/query")
    for i, part in enumerate(("key", "value")):
        arrays |= projection(pool.kv.weight.chunk(2)[i], pool.kv.bias.chunk(2)[i], heads, f"{name}/{part}")
    arrays |= output(pool.proj, heads, f"{name}/out")
    return (
        arrays
        | dense(pool.mlp.fc1, "MAPHead_0/MlpBlock_0/Dense_0")
        | dense(pool.mlp.fc2, "MAPHead_0/MlpBlock_0/Dense_1")
    )


def stem_arrays(backbone: Any) -> Arrays:
    """Convert a ResNet. As in old versions of flax, GroupNorm arrays have three leading dimensions of 1."""
    root = getattr(backbone, "stem", backbone)
    convolutions, norms = {"conv_root": root.conv}, {"gn_root": root.norm}
    for i, stage in enumerate(getattr(backbone, "stages", []), 1):
        for j, unit in enumerate(stage.blocks, 1):
            name = f"block{i}/unit{j}"
            for k in (1, 2, 3):
                convolutions[f"{name}/conv{k}"] = getattr(unit, f"conv{k}")
                norms[f"{name}/gn{k}"] = getattr(unit, f"norm{k}")
            if unit.downsample is not None:
                convolutions[f"{name}/conv_proj"] = unit.downsample.conv
                norms[f"{name}/gn_proj"] = unit.downsample.norm
    arrays: Arrays = {}
    for name, layer in convolutions.items():
        arrays |= convolution(layer, name)
    for name, layer in norms.items():
        arrays |= {key: value[None, None, None] for key, value in norm(layer, name).items()}
    return arrays


@torch.no_grad()
def flax_arrays(model: Any, position: str, attention: int, mlp_norm: int, mlp: int) -> Arrays:
    """Convert a model. `position` is the name of its position embedding; flax numbers the layers of a block."""
    heads = model.blocks[0].attn.num_heads
    arrays = convolution(model.patch_embed.proj, "embedding")
    arrays |= {"embedding/bias": array(model.patch_embed.proj.bias), position: array(model.pos_embed)}
    if model.cls_token is not None:
        arrays["cls"] = array(model.cls_token)
    if hasattr(model.patch_embed, "backbone"):
        arrays |= stem_arrays(model.patch_embed.backbone)
    for i, block in enumerate(model.blocks):
        inner = block_arrays(block, heads, attention, mlp_norm, mlp)
        arrays |= {f"Transformer/encoderblock_{i}/{name}": value for name, value in inner.items()}
    arrays |= norm(model.norm, "Transformer/encoder_norm")
    if model.attn_pool is not None:
        arrays |= map_arrays(model.attn_pool, heads)
    if isinstance(model.head, nn.Linear):
        arrays |= dense(model.head, "head")
    return arrays
