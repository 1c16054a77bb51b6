"""DINOv2 checkpoints of facebookresearch/dinov2, with and without registers."""

import re
from typing import Any

import torch
from torch import Tensor

from vitreous.model.config import ViTConfig
from vitreous.model.options import IMAGENET, Gelu, Learned1d, SwiGlu
from vitreous.weights.formats.base import ConfigBuilder, StateDict
from vitreous.weights.formats.timm.format import Names, TimmLayout, infer_timm
from vitreous.weights.io.containers import TORCH_SUFFIXES

DINOV2_FILES = re.compile(r"dinov2_vit[sblg]14")  # prefix of published file names


class DinoV2(TimmLayout):
    name = "dinov2"
    title = "DINOv2"
    signatures = (("patch_embed.proj.weight", "register_tokens"), ("patch_embed.proj.weight", "mask_token"))
    renames = ((r"^blocks\.\d+\.(\d+\.)", r"blocks.\1"),)  # training may wrap blocks in chunks: blocks.{chunk}.{i}
    ignored = ("mask_token", r"(dino|ibot)_head\..*")
    names = Names(registers="register_tokens", gated=("mlp.w12", "mlp.w3"), register_entries=False)
    suffixes = TORCH_SUFFIXES
    missing = (
        *("other positions", "positions without the class token", "patch_norm", "head_dim", "qk_scale"),
        *("partial patches", "rectangular images", "rectangular patches", "stem", "distillation_token", "qk_norm"),
        *("classifier", "head of two layers", "other pooling"),
    )

    def confirms(self, state: StateDict) -> bool:
        """Return False if the mask token has three dimensions, as in MAE."""
        return "register_tokens" in state.tensors or state.tensors["mask_token"].ndim == 2

    def infer(self, state: StateDict, builder: ConfigBuilder, image_size: Any = None) -> None:
        published = DINOV2_FILES.match(state.path.name) is not None
        infer_timm(state, builder, image_size, self.names, entries=True, published=published)
        resampling: Any = "dinov2-registers" if builder.fields["registers"] > 0 else "dinov2"
        position = Learned1d(builder.fields["position"].prefix_entries, resampling)
        builder.default("DINOv2 default", norm_eps=self.norm_eps, position=position)
        builder.assume_preprocessing("DINOv2 default", IMAGENET, certain=True)
        if isinstance(builder.fields["mlp"], Gelu):
            builder.default("DINOv2 default", mlp=Gelu("erf"))

    def unsupported(self, config: ViTConfig) -> list[str]:
        lines = super().unsupported(config)
        if isinstance(config.mlp, SwiGlu) and config.mlp_width % 8:
            lines.append(f"DINOv2 requires mlp_width to be a multiple of 8 with SwiGLU, got {config.mlp_width}")
        return lines

    def extra_tensors(self, config: ViTConfig) -> dict[str, Tensor]:
        return {"mask_token": torch.zeros(1, config.width)}
