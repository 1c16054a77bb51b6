"""Paddle ViTs for `benchmarks.paddle_parity`, which runs this file with a Python that has paddlepaddle.

    python benchmarks/paddle_models.py write FOLDER    # write models with random weights and their logits
    python benchmarks/paddle_models.py read FOLDER     # run the same models with weights written by Vitreous

This file imports neither torch nor Vitreous.
"""

import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import nn
from paddle.nn import functional as F


@dataclass(frozen=True)
class Words:
    """Parameter names of a ViT in a library. {i} is the layer number."""

    patch: str
    position: str
    class_token: str
    norms: tuple[str, str]
    qkv: str
    output: str
    mlp: tuple[str, str]
    norm: str
    heads: tuple[str, str]


CLAS = Words(
    patch="patch_embed.proj",
    position="pos_embed",
    class_token="cls_token",
    norms=("blocks.{i}.norm1", "blocks.{i}.norm2"),
    qkv="blocks.{i}.attn.qkv",
    output="blocks.{i}.attn.proj",
    mlp=("blocks.{i}.mlp.fc1", "blocks.{i}.mlp.fc2"),
    norm="norm",
    heads=("head", "head_dist"),
)
VIT = Words(
    patch="patch_embedding.patch_embedding",
    position="position_embedding",
    class_token="cls_token",
    norms=("encoder.layers.{i}.attn_norm", "encoder.layers.{i}.mlp_norm"),
    qkv="encoder.layers.{i}.attn.qkv",
    output="encoder.layers.{i}.attn.out",
    mlp=("encoder.layers.{i}.mlp.fc1", "encoder.layers.{i}.mlp.fc2"),
    norm="encoder.encoder_norm",
    heads=("classifier", "classifier_dist"),
)
WORDS = {"paddle": CLAS, "paddlevit": VIT}


@dataclass(frozen=True)
class Case:
    """Model to test, the format that should be detected, and overrides for values that its file does not contain."""

    name: str
    format: str = "paddle"
    width: int = 768
    depth: int = 12
    heads: int = 12
    mlp_width: int = 3072
    qkv_bias: bool = True
    eps: float = 1e-6
    scale: float | None = None
    distilled: bool = False
    image: int = 224
    patch: int = 16
    classes: int = 1000
    overrides: dict[str, Any] = field(default_factory=dict)


TINY: dict[str, Any] = {"width": 192, "heads": 3, "mlp_width": 768}
CASES = [
    # As defined in a tutorial, with its defaults: no qkv bias, eps 1e-5.
    Case("tutorial", qkv_bias=False, eps=1e-5),
    Case("tutorial, with qkv bias", eps=1e-5, overrides={"norm_eps": 1e-5}, **TINY),
    Case("ViT_base_patch16_224"),
    Case("ViT_small_patch16_224", depth=8, heads=8, mlp_width=2304, qkv_bias=False, eps=1e-5, scale=768**-0.5),
    Case("ViT_base_patch32_384", patch=32, image=384),
    Case("DeiT_tiny_distilled_patch16_224", distilled=True, **TINY),
    Case("vit_tiny_patch16_224", "paddlevit", **TINY),
    Case("deit_tiny_distilled_patch16_224", "paddlevit", distilled=True, **TINY),
]


class ViT(nn.Layer):
    """ViT with the layer names of a library; `parts` maps these names to layers."""

    def __init__(self, case: Case, words: Words):
        super().__init__()
        self.case, self.words = case, words
        self.parts: dict[str, nn.Layer] = {}
        self.scale = case.scale or (case.width // case.heads) ** -0.5
        self.tokens = [words.class_token, "dist_token"][: 1 + case.distilled]
        places = (case.image // case.patch) ** 2 + len(self.tokens)
        for name, count in ((words.position, places), *((token, 1) for token in self.tokens)):
            self.add_parameter(name, self.create_parameter([1, count, case.width]))
        self.hang(words.patch, nn.Conv2D(3, case.width, case.patch, case.patch))
        for i in range(case.depth):
            for norm in words.norms:
                self.hang(norm, nn.LayerNorm(case.width, case.eps), i)
            self.hang(words.qkv, nn.Linear(case.width, 3 * case.width, bias_attr=None if case.qkv_bias else False), i)
            self.hang(words.output, nn.Linear(case.width, case.width), i)
            self.hang(words.mlp[0], nn.Linear(case.width, case.mlp_width), i)
            self.hang(words.mlp[1], nn.Linear(case.mlp_width, case.width), i)
        self.hang(words.norm, nn.LayerNorm(case.width, case.eps))
        for head in words.heads[: len(self.tokens)]:
            self.hang(head, nn.Linear(case.width, case.classes))

    def hang(self, path: str, part: nn.Layer, layer: int = 0) -> None:
        """Register a layer under a dotted name, creating empty parent layers as needed."""
        path = path.replace("{i}", str(layer))
        *branches, last = path.split(".")
        at: nn.Layer = self
        for branch in branches:
            if getattr(at, branch, None) is None:
                at.add_sublayer(branch, nn.Layer())
            at = getattr(at, branch)
        at.add_sublayer(last, part)
        self.parts[path] = part

    def part(self, path: str, layer: int = 0) -> nn.Layer:
        return self.parts[path.replace("{i}", str(layer))]

    def forward(self, images: Any) -> Any:
        words = self.words
        patches = self.part(words.patch)(images).flatten(2).transpose([0, 2, 1])
        prefix = [getattr(self, name).expand([images.shape[0], -1, -1]) for name in self.tokens]
        x = paddle.concat([*prefix, patches], axis=1) + getattr(self, words.position)
        for i in range(self.case.depth):
            x = x + self.attend(self.part(words.norms[0], i)(x), i)
            hidden = F.gelu(self.part(words.mlp[0], i)(self.part(words.norms[1], i)(x)))
            x = x + self.part(words.mlp[1], i)(hidden)
        x = self.part(words.norm)(x)
        logits = [self.part(words.heads[i])(x[:, i]) for i in range(len(self.tokens))]
        return sum(logits) / len(logits)

    def attend(self, x: Any, layer: int) -> Any:
        b, t, d = x.shape
        qkv = self.part(self.words.qkv, layer)(x).reshape([b, t, 3, self.case.heads, d // self.case.heads])
        q, k, v = qkv.transpose([2, 0, 3, 1, 4])
        weights = F.softmax(q.matmul(k, transpose_y=True) * self.scale, axis=-1)
        return self.part(self.words.output, layer)(weights.matmul(v).transpose([0, 2, 1, 3]).reshape([b, t, d]))


def build(case: Case, seed: int) -> ViT:
    """Build a model with random values in all tensors, so that missing or swapped tensors are detected.

    The embedded tokens are small, so that the eps of the first norm affects the output.
    """
    generator = np.random.default_rng(seed)
    model = ViT(case, WORDS[case.format])
    for name, tensor in model.named_parameters():
        numbers = generator.standard_normal(tensor.shape).astype(np.float32)
        if tensor.ndim != 2:
            numbers *= 0.02 / np.prod(tensor.shape[1:], dtype=np.float64) ** 0.5 if tensor.ndim == 4 else 0.02
        else:
            numbers /= tensor.shape[0] ** 0.5
        if "norm" in name and name.endswith(".weight"):
            numbers = 1 + 10 * numbers
        tensor.set_value(numbers.astype(np.float32))
    model.eval()
    return model


def write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for seed, case in enumerate(CASES):
        model = build(case, seed)
        images = np.random.default_rng(seed).standard_normal((2, 3, case.image, case.image)).astype(np.float32)
        paddle.save(model.state_dict(), str(folder / f"{case.name}.pdparams"))
        with paddle.no_grad():
            logits = model(paddle.to_tensor(images)).numpy()
        np.savez(folder / f"{case.name}.npz", images=images, logits=logits)
    record = {"paddle": paddle.__version__, "cases": [asdict(case) for case in CASES]}
    (folder / "cases.json").write_text(json.dumps(record))


def read(folder: Path) -> None:
    """Load the files written by Vitreous; save missing and unexpected names and the logits of the same images."""
    for case in CASES:
        model = ViT(case, WORDS[case.format])
        model.eval()
        state = paddle.load(str(folder / f"{case.name}.pdparams"))
        missing, unexpected = model.set_state_dict(state)
        images = np.load(folder / f"{case.name}.npz")["images"]
        with paddle.no_grad():
            logits = model(paddle.to_tensor(images)).numpy()
        np.savez(folder / f"{case.name} in Paddle.npz", logits=logits, missing=missing, unexpected=unexpected)


if __name__ == "__main__":
    {"write": write, "read": read}[sys.argv[1]](Path(sys.argv[2]))
