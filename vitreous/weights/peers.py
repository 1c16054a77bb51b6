"""Runs other libraries on checkpoints written for them, and compares their outputs with those of Vitreous.

A library is imported only if it is needed. b: batch; c: channels; h, w: image height and width.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.common.text import single_spaced
from vitreous.model.config import ViTConfig
from vitreous.model.options import AttentionPool, GlobalAverage, TanhHead
from vitreous.model.protocol import Model
from vitreous.model.swin_config import SwinConfig, SwinV2
from vitreous.weights.formats.detect_format import format_for
from vitreous.weights.formats.swin.timm import timm_swin_config
from vitreous.weights.formats.timm.config import timm_config
from vitreous.weights.formats.timm.eva import TimmEva, eva_config
from vitreous.weights.load import find_tensors
from vitreous.weights.parity import Difference, difference

Output = Callable[[Tensor], Tensor]  # images to logits, or to features for a model without a head


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
    library, load = PEERS[type(model.config), format]
    try:
        theirs = load(path, model.config)(images)
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


def timm_model(config: ViTConfig) -> nn.Module:
    """Build the timm model that belongs to a weight file without a config, with random weights and the exact GELU."""
    import timm

    rotary = isinstance(format_for("timm", config), TimmEva)
    about = eva_config(config) if rotary else timm_config(config)
    about["model_args"].pop("act_layer", None)
    return timm.create_model(about["architecture"], num_classes=about["num_classes"], **about["model_args"])


def _timm(path: Path, config: ViTConfig) -> Output:
    import timm

    if path.is_dir():
        return timm.create_model(f"local-dir:{path}", pretrained=True).eval()
    return _filled(timm_model(config), path)


def _transformers(path: Path, config: ViTConfig) -> Output:
    import transformers

    if config.projection is not None:
        model: Any = transformers.CLIPVisionModelWithProjection.from_pretrained(path, local_files_only=True).eval()
        return lambda images: model(images).image_embeds
    kind: Any = transformers.AutoModelForImageClassification if config.num_classes else transformers.AutoModel
    model = kind.from_pretrained(path, local_files_only=True).eval()
    if config.num_classes:
        return lambda images: model(images).logits
    pooled = config.pre_norm or isinstance(config.pool, AttentionPool)  # CLIP and SigLIP
    return lambda images: model(images).pooler_output if pooled else model(images).last_hidden_state


def _torchvision(path: Path, config: ViTConfig) -> Output:
    from torchvision.models import VisionTransformer

    hidden = config.head.width if isinstance(config.head, TanhHead) else None
    sizes = (config.image_size[0], config.patch_size[0], config.depth, config.num_heads, config.width, config.mlp_width)
    model = VisionTransformer(*sizes, num_classes=config.num_classes or 1, representation_size=hidden)
    if not config.num_classes:
        model.heads = nn.Identity()
    return _filled(model, path)


def _vit_pytorch(path: Path, config: ViTConfig) -> Output:
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


def _timm_swin(path: Path, config: SwinConfig) -> Output:
    import timm

    if path.is_dir():
        return timm.create_model(f"local-dir:{path}", pretrained=True).eval()
    about = timm_swin_config(config)
    return _filled(
        timm.create_model(about["architecture"], num_classes=config.num_classes, **about["model_args"]), path
    )


def _transformers_swin(path: Path, config: SwinConfig) -> Output:
    import transformers

    kind: Any = transformers.AutoModelForImageClassification if config.num_classes else transformers.AutoModel
    model = kind.from_pretrained(path, local_files_only=True).eval()
    return lambda images: model(images).logits if config.num_classes else model(images).last_hidden_state


def _torchvision_swin(path: Path, config: SwinConfig) -> Output:
    from torchvision.models import swin_transformer as peer

    second = isinstance(config.version, SwinV2)
    model = peer.SwinTransformer(
        patch_size=list(config.patch_size), embed_dim=config.width, depths=list(config.depths),
        num_heads=list(config.stage_heads), window_size=list(config.window), mlp_ratio=config.mlp_ratio,
        num_classes=config.num_classes, block=peer.SwinTransformerBlockV2 if second else peer.SwinTransformerBlock,
        downsample_layer=peer.PatchMergingV2 if second else peer.PatchMerging,
    )  # fmt: skip
    return _filled(model, path)


def _filled(model: nn.Module, path: Path) -> nn.Module:
    model.load_state_dict(find_tensors(path).tensors, strict=True)
    return model.eval()


# Library and loader by the class of the config and the name of the format.
PEERS: dict[tuple[type, str], tuple[str, Callable[[Path, Any], Output]]] = {
    (ViTConfig, "timm"): ("timm", _timm),
    (ViTConfig, "huggingface"): ("transformers", _transformers),
    (ViTConfig, "torchvision"): ("torchvision", _torchvision),
    (ViTConfig, "lucidrains"): ("vit-pytorch", _vit_pytorch),
    (SwinConfig, "timm"): ("timm", _timm_swin),
    (SwinConfig, "huggingface"): ("transformers", _transformers_swin),
    (SwinConfig, "torchvision"): ("torchvision", _torchvision_swin),
}
