"""Transformer blocks with fused GPU kernels: equations 2 and 3 in 16 bits with fewer passes over the tokens.

A block of `block.py` reads and writes the tokens for each bias, norm, residual connection and cast. Here, a residual
connection is computed together with the next norm, and a bias together with the operation that follows.

b: batch; t: tokens; d: width.
"""

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook
from torch.nn.utils.parametrize import is_parametrized

from vitreous.kernels import missing
from vitreous.model.attention import AttentionTerms, SelfAttention, terms_of_layer
from vitreous.model.block import Block, GeluMlp, LayerScale, Mlp, QuickGelu, StochasticDepth, SwiGluMlp, gelu_kind
from vitreous.model.fp8_linear import Fp8Linear, input_scale

LINEAR, NORM, DROPOUT = (nn.Linear, Fp8Linear), (nn.LayerNorm,), (nn.Dropout,)
OPTIONAL_NORM, OPTIONAL_SCALE = (nn.Identity, nn.LayerNorm), (nn.Identity, LayerScale)
# The parts of each module, and the classes whose computation `encode` implements.
PARTS: dict[type[nn.Module], dict[str, tuple[type[nn.Module], ...]]] = {
    Block: {
        "attention_norm": NORM,
        "attention": (SelfAttention,),
        "attention_scale": OPTIONAL_SCALE,
        "mlp_norm": NORM,
        "mlp": (GeluMlp, SwiGluMlp),
        "mlp_scale": OPTIONAL_SCALE,
        "stochastic_depth": (StochasticDepth,),
    },
    SelfAttention: {
        **dict.fromkeys(("q", "k", "v", "output"), LINEAR),
        **dict.fromkeys(("q_norm", "k_norm", "output_norm"), OPTIONAL_NORM),
        "output_dropout": DROPOUT,
    },
    GeluMlp: {"up": LINEAR, "activation": (nn.GELU, QuickGelu), "dropout": DROPOUT, "down": LINEAR},
    SwiGluMlp: {"gate_and_up": LINEAR, "norm": OPTIONAL_NORM, "dropout": DROPOUT, "down": LINEAR},
}


def compute_dtype(tokens: Tensor) -> torch.dtype:
    """Return the dtype in which linear layers compute: that of autocast, otherwise that of the tokens."""
    kind = tokens.device.type
    mixed = kind != "meta" and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if mixed else tokens.dtype


class Kernels(NamedTuple):
    """Parts of a model that fused GPU kernels compute, or the reason why there are none."""

    scope: Literal["blocks", "attention in windows", "none"]
    reason: str = ""

    def __str__(self) -> str:
        return f"fused {self.scope}" if self.scope != "none" else f"plain PyTorch ({self.reason})"


def unsupported(blocks: nn.ModuleList, device: torch.device, dtype: torch.dtype) -> str | None:
    """Return the reason why `encode` cannot compute these blocks, or None."""
    return missing(device, dtype) or next(filter(None, (_ignored(block, (Block,)) for block in blocks)), None)


def has_hooks(module: nn.Module) -> bool:
    """Return True if calling the module runs hooks, e.g. for pruning, offloading or FSDP."""
    return any(hooks_of(module)) or has_global_hooks()


def hooks_of(module: nn.Module) -> tuple[dict[int, Any], ...]:
    """Return the hooks of a module that calling it runs. The dicts are those that the module keeps."""
    return (module._forward_pre_hooks, module._forward_hooks, module._backward_pre_hooks, module._backward_hooks)


def has_global_hooks() -> bool:
    """Return True if calling any module runs hooks."""
    return bool(_has_any_global_hook())  # type: ignore[no-untyped-call]


def is_linear(module: nn.Module) -> bool:
    """Return True if a layer computes with its weight and bias only."""
    return (type(module) is nn.Linear or is_parametrized(module)) and not has_hooks(module)


def _ignored(module: nn.Module, classes: tuple[type[nn.Module], ...]) -> str | None:
    """Name what `encode` would ignore in a module (hooks, code of other classes, dropout), or return None."""
    if has_hooks(module):
        return "modules with hooks"
    rate = module.p if isinstance(module, nn.Dropout) else module.dropout if isinstance(module, SelfAttention) else 0
    if module.training and rate:
        return "dropout"
    if is_parametrized(module):  # LoRA: reading the weight computes it
        return None
    if type(module) not in classes:
        return f"modules of type {type(module).__name__}"
    if isinstance(module, nn.LayerNorm) and len(list(module.parameters())) < 2:
        return "norms without a weight or bias"
    if isinstance(module, GeluMlp) and gelu_kind(module.activation) != module.approximation:
        return "another activation function"
    parts = PARTS.get(type(module), {})
    return next(filter(None, (_ignored(getattr(module, name), parts[name]) for name in parts)), None)


def encode(blocks: nn.ModuleList, tokens: Float[Tensor, "b t d"], terms: AttentionTerms) -> Float[Tensor, "b t d"]:
    """Apply the blocks to the tokens (equations 2 and 3, L times)."""
    from vitreous.kernels.add_norm import Branch, add_norm, layer_norm, plain_add

    dtype = compute_dtype(tokens)
    # With LayerScale, branches can be too small to be added in 16 bits. Without it, 16 bits save time.
    small = any(isinstance(block.attention_scale, LayerScale) for block in cast(Iterable[Block], blocks))
    tokens, branch = (tokens if small else tokens.to(dtype)).contiguous(), None
    for layer, block in enumerate(cast(Iterable[Block], blocks)):
        for norm, module, scale in (
            (block.attention_norm, block.attention, block.attention_scale),
            (block.mlp_norm, block.mlp, block.mlp_scale),
        ):
            first, last = _linear_layers(module)
            if branch is None:
                normed = layer_norm(tokens, norm.weight, norm.bias, norm.eps, dtype, input_scale(first))
            else:
                tokens, normed = add_norm(tokens, branch, norm.weight, norm.bias, norm.eps, input_scale(first))
            if isinstance(module, SelfAttention):
                hidden = _attended(module, normed, terms_of_layer(terms, layer), dtype)
            else:
                hidden = _hidden(module, normed, dtype)
            values = _multiply(last, hidden, last.weight, None, dtype)  # add_norm adds the bias
            factor = scale.factor if isinstance(scale, LayerScale) else None
            branch = Branch(values, last.bias, factor, block.stochastic_depth.factors(values))
    return tokens if branch is None else plain_add(tokens, branch)


def _linear_layers(module: SelfAttention | Mlp) -> tuple[nn.Linear | Fp8Linear, nn.Linear | Fp8Linear]:
    """Return the layers that read the norm and that write the residual branch."""
    if isinstance(module, SelfAttention):
        return module.q, module.output  # q, k and v have the same scales
    return module.up if isinstance(module, GeluMlp) else module.gate_and_up, module.down


def _multiply(layer: nn.Module, x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return x weight^T + bias in the precision of the layer."""
    if isinstance(layer, Fp8Linear):
        return layer.multiply(x, weight, bias, dtype)
    return F.linear(x.to(dtype), weight.to(dtype), bias)


def _attended(attention: SelfAttention, normed: Tensor, terms: AttentionTerms, dtype: torch.dtype) -> Tensor:
    """Return the concatenated heads before the output layer."""
    from vitreous.kernels.attention import attention as fused_attention
    from vitreous.kernels.attention import plain_attention, supports

    if terms.rotation is not None or terms.bias is not None or not isinstance(attention.q_norm, nn.Identity):
        q, k, v = attention.queries_keys_values(normed, terms)
        gathered = F.scaled_dot_product_attention(q, k, v, terms.bias, scale=attention.scale)
        return attention.output_norm(gathered.transpose(1, 2).flatten(2))
    bias = attention.packed_bias()
    fused = supports(normed.shape[1], attention.head_dim, normed.device)
    added = None if bias is None else bias.to(dtype)
    # The fused attention sums the gradient of the bias while it has all gradients at hand.
    added = added.detach() if fused and added is not None else added
    qkv = _multiply(attention.q, normed, attention.packed_weight(), added, dtype)
    next_scale = input_scale(attention.output) if isinstance(attention.output_norm, nn.Identity) else None
    size = (attention.num_heads, attention.scale, next_scale)
    return attention.output_norm(fused_attention(qkv, bias, *size) if fused else plain_attention(qkv, None, *size))


def _hidden(mlp: Mlp, normed: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the input of the last linear layer of an MLP."""
    from vitreous.kernels.bias_gelu import bias_gelu

    if isinstance(mlp, SwiGluMlp):
        return mlp.hidden(normed)
    if mlp.approximation == "tanh" and not torch.is_grad_enabled() and not isinstance(mlp.up, Fp8Linear):
        bias, weight = mlp.up.bias.to(dtype), mlp.up.weight.to(dtype).t()
        rows = torch._addmm_activation(bias, normed.flatten(0, 1), weight, use_gelu=True)  # within the matrix product
        return rows.view(*normed.shape[:2], -1)
    return bias_gelu(
        _multiply(mlp.up, normed, mlp.up.weight, None, dtype), mlp.up.bias, mlp.approximation, input_scale(mlp.down)
    )
