"""An independent forward pass of a ViT with tensors in Paddle's layout, without Paddle."""

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import vitreous
from vitreous.model.vit import ViT

WIDTH, HEADS, MLP, PATCH, IMAGE, CLASSES, DEPTH = 128, 2, 160, 8, 32, 7, 2
NAMES = "StructuredToParameterName@@"


@dataclass(frozen=True)
class Layout:
    """Names of the parts of a ViT in a Paddle library."""

    patch: str
    position: str
    class_token: str
    layer: str
    norms: tuple[str, str]
    output: str
    norm: str
    heads: tuple[str, str]


CLAS = Layout(
    "patch_embed.proj", "pos_embed", "cls_token", "blocks", ("norm1", "norm2"), "attn.proj", "norm",
    ("head", "head_dist"),
)  # fmt: skip
VIT = Layout(
    "patch_embedding.patch_embedding", "position_embedding", "cls_token", "encoder.layers", ("attn_norm", "mlp_norm"),
    "attn.out", "encoder.encoder_norm", ("classifier", "classifier_dist"),
)  # fmt: skip
LAYOUTS = {"paddle": CLAS, "paddlevit": VIT}


def state(
    layout: Layout, bias: bool = True, distilled: bool = False, classes: int = CLASSES, inner: int = WIDTH
) -> dict[str, Tensor]:
    """Return random tensors in Paddle's layout (matrices [in, out]). Small patch weights make eps matter."""
    tokens = 1 + distilled
    tensors = {
        f"{layout.patch}.weight": torch.randn(WIDTH, 3, PATCH, PATCH) * 0.002,
        f"{layout.patch}.bias": torch.randn(WIDTH) * 0.02,
        layout.position: torch.randn(1, (IMAGE // PATCH) ** 2 + tokens, WIDTH) * 0.02,
        layout.class_token: torch.randn(1, 1, WIDTH) * 0.02,
    }
    if distilled:
        tensors["dist_token"] = torch.randn(1, 1, WIDTH) * 0.02
    linear = {}
    for i in range(DEPTH):
        at = f"{layout.layer}.{i}"
        linear |= {f"{at}.attn.qkv": (WIDTH, 3 * inner), f"{at}.{layout.output}": (inner, WIDTH)}
        linear |= {f"{at}.mlp.fc1": (WIDTH, MLP), f"{at}.mlp.fc2": (MLP, WIDTH)}
    linear |= {head: (WIDTH, classes) for head in layout.heads[:tokens] if classes}
    for name, shape in linear.items():
        tensors |= {
            f"{name}.weight": torch.randn(shape) * shape[0] ** -0.5,
            f"{name}.bias": torch.randn(shape[1]) * 0.1,
        }
    for name in [layout.norm, *(f"{layout.layer}.{i}.{norm}" for i in range(DEPTH) for norm in layout.norms)]:
        tensors |= {f"{name}.weight": torch.randn(WIDTH), f"{name}.bias": torch.randn(WIDTH) * 0.1}
    return {name: tensor for name, tensor in tensors.items() if bias or not name.endswith("qkv.bias")}


def reference(
    tensors: dict[str, Tensor], layout: Layout, images: Tensor, eps: float, scale: float | None = None
) -> Tensor:
    """Compute the outputs from tensors in Paddle's layout (x W + b)."""

    def linear(name: str, x: Tensor) -> Tensor:
        return x @ tensors[f"{name}.weight"] + tensors.get(f"{name}.bias", torch.zeros(()))

    def norm(name: str, x: Tensor) -> Tensor:
        x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, unbiased=False) + eps).sqrt()
        return x * tensors[f"{name}.weight"] + tensors[f"{name}.bias"]

    patches = F.conv2d(images, tensors[f"{layout.patch}.weight"], tensors[f"{layout.patch}.bias"], stride=PATCH)
    prefix = [
        tensors[name].expand(len(images), 1, -1) for name in (layout.class_token, "dist_token") if name in tensors
    ]
    x = torch.cat([*prefix, patches.flatten(2).mT], dim=1) + tensors[layout.position]
    for i in range(DEPTH):
        at = f"{layout.layer}.{i}"
        parts = linear(f"{at}.attn.qkv", norm(f"{at}.{layout.norms[0]}", x)).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        weights = (q @ k.mT * (scale or q.shape[-1] ** -0.5)).softmax(dim=-1)
        x = x + linear(f"{at}.{layout.output}", (weights @ v).transpose(1, 2).flatten(2))
        hidden = F.gelu(linear(f"{at}.mlp.fc1", norm(f"{at}.{layout.norms[1]}", x)))
        x = x + linear(f"{at}.mlp.fc2", hidden)
    x = norm(layout.norm, x)
    outputs = [
        linear(head, x[:, i]) if f"{head}.weight" in tensors else x[:, i]
        for i, head in enumerate(layout.heads[: len(prefix)])
    ]
    return torch.stack(outputs).mean(0)


def saved(tensors: dict[str, Tensor], path: Path) -> Path:
    """Save as `paddle.save` does."""
    arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in tensors.items()}
    path.write_bytes(pickle.dumps(arrays | {NAMES: {name: f"linear_{name}" for name in tensors}}, protocol=4))
    return path


def loaded(path: Path, **options: Any) -> ViT:
    model = vitreous.load(path, **options)
    assert isinstance(model, ViT)
    return model
