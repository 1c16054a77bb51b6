"""Builds the models of other libraries from checkpoints written for them, and compares their outputs with Vitreous.

A library is imported only if it is needed. b: batch; c: channels; h, w: image height and width.
"""

import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.common.text import single_spaced
from vitreous.model.config import ViTConfig
from vitreous.model.options import AttentionPool, GlobalAverage, TanhHead
from vitreous.model.protocol import Model, ModelConfig
from vitreous.model.swin_config import SwinConfig, SwinV2
from vitreous.weights.formats.detect_format import format_for
from vitreous.weights.formats.swin.timm import timm_swin_config
from vitreous.weights.formats.timm.config import timm_config
from vitreous.weights.formats.timm.eva import TimmEva, eva_config
from vitreous.weights.load import find_tensors
from vitreous.weights.parity import Difference, difference


class PeerCheck(NamedTuple):
    """Difference between the outputs of Vitreous and another library, or the reason why that library did not run."""

    library: str
    outputs: Difference | None
    reason: str = ""


@torch.no_grad()
def check_with_peer(model: Model, format: str, path: Path, images: Float[Tensor, "b c h w"]) -> PeerCheck | None:
    """Load a written checkpoint with the library of its format and compare the outputs.

    Return None if there is no Python package for the format.
    """
    if (type(model.config), format) not in PEERS:
        return None
    library, _ = PEERS[type(model.config), format]
    try:
        theirs = load_peer(format, path, model.config)(images)
    except ModuleNotFoundError as error:
        reason = f"{error.name} is not installed" if error.name else single_spaced(str(error), 200)
        return PeerCheck(library, None, reason)
    except Exception as error:  # a broken installation, or an unsupported version, must not fail the conversion
        return PeerCheck(library, None, single_spaced(f"{type(error).__name__}: {error}", 200))
    ours = model(images)
    if theirs.shape != ours.shape:  # transformers returns all tokens of a model without a head
        features = model.features(images)
        ours = torch.cat([features.prefix, features.patches], dim=1)
    return PeerCheck(library, difference("outputs", ours, theirs))


def load_peer(format: str, path: Path, config: ModelConfig) -> nn.Module:
    """Load a checkpoint with the library of its format, as a module from images to logits, or to features.

    The features of a model without a head are one vector per image, or all tokens.
    """
    repair_torchvision()
    _, load = PEERS[type(config), format]
    return load(path, config).eval()


def repair_torchvision() -> None:
    """Make torchvision, which other libraries import, importable even if it was built for another torch version.

    Such a torchvision fails to import because its operators are missing. ViTs do not use them, so the two that are
    looked up at import are declared without an implementation.
    """
    with warnings.catch_warnings(), suppress(ModuleNotFoundError):
        warnings.simplefilter("ignore")
        try:
            import torchvision
        except RuntimeError:
            for operator in ("nms", "qnms"):
                torch.library.define(f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou) -> Tensor")
            import torchvision  # noqa: F401


def timm_model(config: ViTConfig) -> nn.Module:
    """Build the timm model that belongs to a weight file without a config, with random weights and the exact GELU."""
    repair_torchvision()
    import timm

    rotary = isinstance(format_for("timm", config), TimmEva)
    about = eva_config(config) if rotary else timm_config(config)
    about["model_args"].pop("act_layer", None)
    return timm.create_model(about["architecture"], num_classes=about["num_classes"], **about["model_args"])


def _timm(path: Path, config: ViTConfig) -> nn.Module:
    import timm

    if path.is_dir():
        return timm.create_model(f"local-dir:{path}", pretrained=True, drop_path_rate=config.stochastic_depth)
    return _filled(timm_model(config), path)


def _transformers(path: Path, config: ViTConfig) -> nn.Module:
    import transformers

    if config.projection is not None:
        model: Any = transformers.CLIPVisionModelWithProjection.from_pretrained(path, local_files_only=True)
        return _OneOutput(model, "image_embeds")
    kind: Any = transformers.AutoModelForImageClassification if config.num_classes else transformers.AutoModel
    model = kind.from_pretrained(path, local_files_only=True)
    pooled = config.pre_norm or isinstance(config.pool, AttentionPool)  # CLIP and SigLIP
    return _OneOutput(model, "logits" if config.num_classes else "pooler_output" if pooled else "last_hidden_state")


class _OneOutput(nn.Module):
    """A model of transformers that returns a single tensor."""

    def __init__(self, model: nn.Module, name: str):
        super().__init__()
        self.model, self.name = model, name

    def forward(self, images: Tensor) -> Tensor:
        return getattr(self.model(images), self.name)


def _torchvision(path: Path, config: ViTConfig) -> nn.Module:
    from torchvision.models import VisionTransformer

    hidden = config.head.width if isinstance(config.head, TanhHead) else None
    sizes = (config.image_size[0], config.patch_size[0], config.depth, config.num_heads, config.width, config.mlp_width)
    model = VisionTransformer(*sizes, num_classes=config.num_classes or 1, representation_size=hidden)
    if not config.num_classes:
        model.heads = nn.Identity()
    return _filled(model, path)


def _vit_pytorch(path: Path, config: ViTConfig) -> nn.Module:
    from vit_pytorch import ViT as Peer

    model = Peer(
        image_size=config.image_size, patch_size=config.patch_size, dim=config.width, depth=config.depth,
        heads=config.num_heads, dim_head=config.head_dim or config.width // config.num_heads, mlp_dim=config.mlp_width,
        num_classes=config.num_classes or 1, channels=config.channels,
        pool="mean" if isinstance(config.pool, GlobalAverage) else "cls",
    )  # fmt: skip
    if not config.num_classes:
        model.mlp_head = nn.Identity()
    return _filled(model, path)


def _timm_swin(path: Path, config: SwinConfig) -> nn.Module:
    import timm

    if path.is_dir():
        return timm.create_model(f"local-dir:{path}", pretrained=True, drop_path_rate=config.stochastic_depth)
    about = timm_swin_config(config)
    return _filled(
        timm.create_model(about["architecture"], num_classes=config.num_classes, **about["model_args"]), path
    )


def _transformers_swin(path: Path, config: SwinConfig) -> nn.Module:
    import transformers

    kind: Any = transformers.AutoModelForImageClassification if config.num_classes else transformers.AutoModel
    model = kind.from_pretrained(path, local_files_only=True)
    return _OneOutput(model, "logits" if config.num_classes else "last_hidden_state")


def _torchvision_swin(path: Path, config: SwinConfig) -> nn.Module:
    from torchvision.models import swin_transformer as peer

    second = isinstance(config.version, SwinV2)
    model = peer.SwinTransformer(
        patch_size=list(config.patch_size), embed_dim=config.width, depths=list(config.depths),
        num_heads=list(config.stage_heads), window_size=list(config.window), mlp_ratio=config.mlp_ratio,
        num_classes=config.num_classes, stochastic_depth_prob=config.stochastic_depth,
        block=peer.SwinTransformerBlockV2 if second else peer.SwinTransformerBlock,
        downsample_layer=peer.PatchMergingV2 if second else peer.PatchMerging,
    )  # fmt: skip
    return _filled(model, path)


def _filled(model: nn.Module, path: Path) -> nn.Module:
    model.load_state_dict(find_tensors(path).tensors, strict=True)
    return model


# Library and loader by the class of the config and the name of the format.
PEERS: dict[tuple[type, str], tuple[str, Callable[[Path, Any], nn.Module]]] = {
    (ViTConfig, "timm"): ("timm", _timm),
    (ViTConfig, "huggingface"): ("transformers", _transformers),
    (ViTConfig, "torchvision"): ("torchvision", _torchvision),
    (ViTConfig, "lucidrains"): ("vit-pytorch", _vit_pytorch),
    (SwinConfig, "timm"): ("timm", _timm_swin),
    (SwinConfig, "huggingface"): ("transformers", _transformers_swin),
    (SwinConfig, "torchvision"): ("torchvision", _torchvision_swin),
}
