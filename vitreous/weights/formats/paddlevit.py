"""PaddleViT's files (BR-IDL/PaddleViT, its ViT and its DeiT): names of its own, matrices [in, out] as Paddle has them.

Names and numerics read from `image_classification/ViT/vit.py` and `DeiT/deit.py`, of 2022 and, for ViT, of the year
before, when the class token and the positions belonged to the patches.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from vitreous.model.config import ViTConfig
from vitreous.model.options import IMAGENET, ClassToken, Gelu, Learned1d, Preprocessing
from vitreous.weights.formats.base import Format, Found, Inference
from vitreous.weights.formats.limits import numeric_losses, unfit_scale
from vitreous.weights.formats.mapping import TRANSPOSED, Row, packed_rows, positions, renamed, repeated, row, rows
from vitreous.weights.formats.paddle import paddle_obstacles, write_paddle
from vitreous.weights.io.safetensors_file import BadCheckpoint

OLDER = [
    (r"^patch_embedding\.cls_token$", "cls_token"),
    (r"^patch_embedding\.position_embeddings$", "position_embedding"),
]
PATCH, LAYER = "patch_embedding.patch_embedding", "encoder.layers.{i}"


class PaddleViT(Format):
    name = "paddlevit"
    title = "PaddleViT"

    def recognises(self, found: Found) -> bool:
        return f"{PATCH}.weight" in found.tensors and "encoder.layers.0.attn.qkv.weight" in found.tensors

    def normalise(self, found: Found) -> Found:
        return Found(found.path, renamed(found.tensors, OLDER), found.config)

    def infer(self, found: Found, guess: Inference, image_size: Any = None) -> None:
        if "pre_logits.0.weight" in found.tensors:
            raise BadCheckpoint(f"{found.path} has a hidden layer with ReLU before its classifier (pre_logits.0)")
        width, channels, *patch = found.shape(f"{PATCH}.weight", 4)
        distilled = "dist_token" in found.tensors
        guess.set(
            width=width,
            depth=found.count(f"{LAYER}.attn_norm.weight"),
            channels=channels,
            patch_size=(patch[0], patch[1]),
            distillation_token=distilled,
            qkv_bias="encoder.layers.0.attn.qkv.bias" in found.tensors,
            mlp=Gelu("erf"),
            mlp_width=found.shape("encoder.layers.0.mlp.fc1.weight", 2)[1],
            pool=ClassToken(),
            num_classes=found.shape("classifier.weight", 2)[1],
        )
        _infer_heads(found, guess, width)
        guess.grid(found.shape("position_embedding", 3)[1], (1 + distilled,), (patch[0], patch[1]), image_size)
        guess.follow("PaddleViT's", norm_eps=1e-6, position=Learned1d(interpolation="huggingface"))
        # Its configs cut out the centre at 224 pixels, and show the whole picture at 384.
        crop = 1.0 if min(guess.fields["image_size"]) >= 384 else 0.875
        if distilled:
            shown = Preprocessing(IMAGENET.mean, IMAGENET.std, crop_fraction=crop)
            guess.prepare("PaddleViT's for DeiT", shown)
        else:
            guess.assume("PaddleViT's for ViT", preprocessing=Preprocessing(crop_fraction=crop))

    def table(self, config: ViTConfig) -> list[Row]:
        table = [*rows("patches.projection", PATCH), row("prefix.class_token", "cls_token")]
        if config.distillation_token:
            table.append(row("prefix.distillation_token", "dist_token"))
        entries = config.class_token + config.distillation_token
        table.append(row(("position.prefix", "position.table"), "position_embedding", positions(entries, config.grid)))
        table += repeated(_layer(config.qkv_bias), config.depth)
        table += rows("norm", "encoder.encoder_norm") + rows("head", "classifier", TRANSPOSED)
        if config.distillation_token:
            table += rows("distillation_head", "classifier_dist", TRANSPOSED)
        return table

    def obstacles(self, config: ViTConfig) -> list[str]:
        lines = paddle_obstacles(config, self.title) + unfit_scale(config, self.title)
        if not config.num_classes:
            lines.append("no classifier: PaddleViT always has one")
        return lines

    def losses(self, config: ViTConfig, folder: bool = False) -> list[str]:
        return numeric_losses(config, self.title, 1e-6)

    def write(self, tensors: Mapping[str, Tensor], config: ViTConfig, path: Path) -> None:
        write_paddle(tensors, path)


def _layer(qkv_bias: bool) -> list[Row]:
    ours = "encoder.blocks.{i}"
    parts = ("weight", "bias") if qkv_bias else ("weight",)
    return [
        *rows(f"{ours}.attention_norm", f"{LAYER}.attn_norm"),
        *packed_rows([f"{ours}.attention.{part}" for part in "qkv"], f"{LAYER}.attn.qkv", TRANSPOSED, parts),
        *rows(f"{ours}.attention.output", f"{LAYER}.attn.out", TRANSPOSED),
        *rows(f"{ours}.mlp_norm", f"{LAYER}.mlp_norm"),
        *rows(f"{ours}.mlp.up", f"{LAYER}.mlp.fc1", TRANSPOSED),
        *rows(f"{ours}.mlp.down", f"{LAYER}.mlp.fc2", TRANSPOSED),
    ]


def _infer_heads(found: Found, guess: Inference, width: int) -> None:
    """Its heads may be of any width; what leaves all of them together is the input of `out`."""
    inner = found.shape("encoder.layers.0.attn.out.weight", 2)[0]
    guess.heads(inner)
    heads = guess.overrides.get("num_heads", guess.fields.get("num_heads"))
    if inner != width and isinstance(heads, int) and heads > 0:
        guess.set(head_dim=inner // heads)
