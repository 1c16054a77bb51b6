"""timm's relatives of a ViT: unsupported parts, detected by their tensors, by missing ones, or by their order."""

import re

from vitreous.weights.formats.base import Found
from vitreous.weights.io.safetensors_file import BadCheckpoint

# Where in a name: nothing is to be tried at every place of it, as names are a stranger's.
PARTS = {
    r"^norm_pre\.": "a norm before the first block (norm_pre), as CLIP has",
    r"\.attn\.[qv]_bias$": "a bias on queries and values, but not on keys (q_bias), as BEiT and EVA have",
    r"relative_position_bias_table|rel_pos": "positions relative to each other (rel_pos)",
    r"\.attn\.proj_[lw]\.": "heads that are mixed (proj_l), as CaiT has",
    r"\.attn\.norm\.": "a norm on what attention puts out (attn.norm)",
    r"\.mlp\.norm\.": "a norm inside of the MLP (mlp.norm)",
    r"\.mlp\.fc1_[gx]\.": "a gate apart from what it lets through (fc1_g), as EVA and DINOv3 have",
    r"\.attn\.lambda_": "attention that is the difference of two (lambda_q1)",
    r"^rope\.": "rotated queries and keys beside positions (rope)",
    r"^patch_embed\.norm\.": "a norm on the patches (patch_embed.norm)",
}
MISSING = {
    "pos_embed": "no learned positions (pos_embed): rotated queries and keys, as DINOv3's, relative ones, or none",
    "blocks.0.norm1.bias": "norms without a bias, as RMSNorm",
    "blocks.0.attn.proj.bias": "no bias on the output of attention (attn.proj)",
}
FINAL = ("norm.weight", "fc_norm.weight")


def refuse_unlike(found: Found, architecture: str) -> None:
    """Refuse a model with unsupported parts; the message names them, and the architecture if it is known."""
    names = found.tensors
    parts = [part for pattern, part in PARTS.items() if any(re.search(pattern, name) for name in names)]
    parts += [part for name, part in MISSING.items() if name not in names]
    if not any(name in names for name in FINAL):
        parts.append("no norm after the last block (norm)")
    if _has_norms_after(found):
        parts.append("norms after the layers instead of before them (norm1 follows attn), as rpn models have")
    if parts:
        said = f" ({architecture})" if architecture else ""
        raise BadCheckpoint(f"{found.path} is a model of timm's{said} that has no counterpart here: {'; '.join(parts)}")


def _has_norms_after(found: Found) -> bool:
    """True if a block's tensors are in the order of timm's ResPostBlock: attn, norm1, mlp, norm2.

    A plain block has norm1 first, and where names are sorted, as safetensors does, norm1 comes after mlp.
    """
    parts = [name.split(".")[2] for name in found.tensors if name.startswith("blocks.0.") and name.count(".") > 2]
    first = [part for part in dict.fromkeys(parts) if part in ("attn", "norm1", "mlp", "norm2")]
    return first == ["attn", "norm1", "mlp", "norm2"]
