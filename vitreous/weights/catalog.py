"""Catalog of pretrained weights: short names such as `dinov2-s` for repositories on the Hugging Face Hub.

Most entries are timm's copies of the published weights (`model.safetensors` and `config.json`), downloaded by `hub.py`.
CLIP and SigLIP are the authors' files for transformers, because timm's copies use another GELU; they contain a text
tower, which is not loaded.
The Hub publishes the SHA-256 of each file, and every download is checked against it. This module does not import torch.

Names: family, size and patch (`augreg-b16`), then `-reg` (registers), `-distilled`, `-384` (image size), `-in21k`
(pre-trained on ImageNet-21k, not fine-tuned) or `-in21k-ft` (pre-trained on ImageNet-21k, then fine-tuned on
ImageNet-1k). Without `-in21k` and `-in21k-ft`, DeiT-III and Swin were trained on ImageNet-1k alone, whereas AugReg, ViT
and BiT were pre-trained on ImageNet-21k and fine-tuned on ImageNet-1k.
"""

import re
from dataclasses import dataclass

from vitreous.common.checks import suggestion

HUB_PREFIX = "hf-hub:"
OWNER = "timm"

# Meanings of `top1`. timm evaluates all models that have an ImageNet-1k head (its results-imagenet.csv).
EVALUATED = "ImageNet-1k top-1 of these weights, measured by timm"
LINEAR = "ImageNet-1k top-1 of a linear probe, reported by the authors"
ZERO_SHOT = "ImageNet-1k top-1 without training, by comparison with texts, measured by OpenCLIP"
REPORTED = "ImageNet-1k top-1 of these weights, reported by the authors"
NOT_LISTED = "in the paper, on other test sets"
FINE_TUNED = "ImageNet-1k top-1 after fine-tuning, reported by the authors"
FINE_TUNED_224 = "ImageNet-1k top-1 after fine-tuning at 224 pixels (the entry without -in21k), measured by timm"
FINE_TUNED_448 = "ImageNet-1k top-1 after fine-tuning at 448 pixels (the entry without -in21k), measured by timm"
FINE_TUNED_384 = "ImageNet-1k top-1 after fine-tuning at 384 pixels, reported by the authors"


@dataclass(frozen=True)
class Pretrained:
    """Pretrained weights on the Hugging Face Hub."""

    model: str  # timm's name, or owner/name of another repository
    preset: str  # preset with the same architecture; "" if there is none
    image_size: int
    parameters: float  # in millions, including the head
    top1: float | None  # in percent; None if the authors do not report it
    measured: str  # meaning of `top1`
    license: str
    paper: str  # arXiv id

    @property
    def repository(self) -> str:
        return self.model if "/" in self.model else f"{OWNER}/{self.model}"

    @property
    def source(self) -> str:
        return f"{HUB_PREFIX}{self.repository}"


def _family(
    paper: str, license: str, measured: str, rows: dict[str, tuple[str, str, int, float, float | None]]
) -> dict[str, Pretrained]:
    return {name: Pretrained(*row, measured, license, paper) for name, row in rows.items()}


# name: model, preset, image size, millions of parameters, top-1 in percent
CATALOG: dict[str, Pretrained] = {
    **_family("2304.07193", "apache-2.0", LINEAR, {
        "dinov2-s": ("vit_small_patch14_dinov2.lvd142m", "DINOv2-S/14", 518, 22.1, 81.1),
        "dinov2-b": ("vit_base_patch14_dinov2.lvd142m", "DINOv2-B/14", 518, 86.6, 84.5),
        "dinov2-l": ("vit_large_patch14_dinov2.lvd142m", "DINOv2-L/14", 518, 304.4, 86.3),
        "dinov2-g": ("vit_giant_patch14_dinov2.lvd142m", "DINOv2-g/14", 518, 1136.5, 86.5),
    }),
    **_family("2309.16588", "apache-2.0", LINEAR, {
        "dinov2-s-reg": ("vit_small_patch14_reg4_dinov2.lvd142m", "DINOv2-S/14-reg", 518, 22.1, 80.9),
        "dinov2-b-reg": ("vit_base_patch14_reg4_dinov2.lvd142m", "DINOv2-B/14-reg", 518, 86.6, 84.6),
        "dinov2-l-reg": ("vit_large_patch14_reg4_dinov2.lvd142m", "DINOv2-L/14-reg", 518, 304.4, 86.7),
        "dinov2-g-reg": ("vit_giant_patch14_reg4_dinov2.lvd142m", "DINOv2-g/14-reg", 518, 1136.5, 87.1),
    }),
    **_family("2508.10104", "dinov3-license", NOT_LISTED, {
        "dinov3-s": ("vit_small_patch16_dinov3_qkvb.lvd1689m", "DINOv3-S/16", 256, 21.6, None),
        "dinov3-s-plus": ("vit_small_plus_patch16_dinov3_qkvb.lvd1689m", "DINOv3-S+/16", 256, 28.7, None),
        "dinov3-b": ("vit_base_patch16_dinov3_qkvb.lvd1689m", "DINOv3-B/16", 256, 85.7, None),
        "dinov3-l": ("vit_large_patch16_dinov3_qkvb.lvd1689m", "DINOv3-L/16", 256, 303.1, None),
        "dinov3-h-plus": ("vit_huge_plus_patch16_dinov3_qkvb.lvd1689m", "DINOv3-H+/16", 256, 840.6, None),
    }),
    **_family("2303.11331", "mit", REPORTED, {
        "eva02-ti": ("eva02_tiny_patch14_336.mim_in22k_ft_in1k", "EVA02-Ti/14", 336, 5.8, 80.7),
        "eva02-s": ("eva02_small_patch14_336.mim_in22k_ft_in1k", "EVA02-S/14", 336, 22.1, 85.8),
        "eva02-b": ("eva02_base_patch14_448.mim_in22k_ft_in22k_in1k", "EVA02-B/14", 448, 87.1, 88.6),
        "eva02-l": ("eva02_large_patch14_448.mim_m38m_ft_in22k_in1k", "EVA02-L/14", 448, 305.1, 90.0),
    }),
    **_family("2403.13298", "apache-2.0", REPORTED, {
        "rope-mixed-s16": ("vit_small_patch16_rope_mixed_224.naver_in1k", "RoPE-ViT-S/16-mixed", 224, 22.0, 80.9),
        "rope-mixed-b16": ("vit_base_patch16_rope_mixed_224.naver_in1k", "RoPE-ViT-B/16-mixed", 224, 86.4, 83.8),
        "rope-mixed-l16": ("vit_large_patch16_rope_mixed_224.naver_in1k", "RoPE-ViT-L/16-mixed", 224, 304.2, 84.8),
    }),
    **_family("2106.10270", "apache-2.0", EVALUATED, {
        "augreg-ti16": ("vit_tiny_patch16_224.augreg_in21k_ft_in1k", "ViT-Ti/16", 224, 5.7, 75.5),
        "augreg-s32": ("vit_small_patch32_224.augreg_in21k_ft_in1k", "ViT-S/32", 224, 22.9, 76.0),
        "augreg-s16": ("vit_small_patch16_224.augreg_in21k_ft_in1k", "ViT-S/16", 224, 22.1, 81.4),
        "augreg-b32": ("vit_base_patch32_224.augreg_in21k_ft_in1k", "ViT-B/32", 224, 88.2, 80.7),
        "augreg-b16": ("vit_base_patch16_224.augreg_in21k_ft_in1k", "ViT-B/16", 224, 86.6, 84.5),
        "augreg-b8": ("vit_base_patch8_224.augreg_in21k_ft_in1k", "ViT-B/8", 224, 86.6, 85.8),
        "augreg-l16": ("vit_large_patch16_224.augreg_in21k_ft_in1k", "ViT-L/16", 224, 304.3, 85.9),
        "augreg-ti16-384": ("vit_tiny_patch16_384.augreg_in21k_ft_in1k", "ViT-Ti/16", 384, 5.8, 78.4),
        "augreg-s32-384": ("vit_small_patch32_384.augreg_in21k_ft_in1k", "ViT-S/32", 384, 22.9, 80.5),
        "augreg-s16-384": ("vit_small_patch16_384.augreg_in21k_ft_in1k", "ViT-S/16", 384, 22.2, 83.8),
        "augreg-b32-384": ("vit_base_patch32_384.augreg_in21k_ft_in1k", "ViT-B/32", 384, 88.3, 83.4),
        "augreg-b16-384": ("vit_base_patch16_384.augreg_in21k_ft_in1k", "ViT-B/16", 384, 86.9, 86.0),
        "augreg-l16-384": ("vit_large_patch16_384.augreg_in21k_ft_in1k", "ViT-L/16", 384, 304.7, 87.1),
    }),
    **_family("2106.10270", "apache-2.0", FINE_TUNED_224, {
        "augreg-ti16-in21k": ("vit_tiny_patch16_224.augreg_in21k", "ViT-Ti/16", 224, 9.7, 75.5),
        "augreg-s32-in21k": ("vit_small_patch32_224.augreg_in21k", "ViT-S/32", 224, 30.9, 76.0),
        "augreg-s16-in21k": ("vit_small_patch16_224.augreg_in21k", "ViT-S/16", 224, 30.1, 81.4),
        "augreg-b32-in21k": ("vit_base_patch32_224.augreg_in21k", "ViT-B/32", 224, 104.3, 80.7),
        "augreg-b16-in21k": ("vit_base_patch16_224.augreg_in21k", "ViT-B/16", 224, 102.6, 84.5),
        "augreg-b8-in21k": ("vit_base_patch8_224.augreg_in21k", "ViT-B/8", 224, 102.6, 85.8),
        "augreg-l16-in21k": ("vit_large_patch16_224.augreg_in21k", "ViT-L/16", 224, 325.7, 85.9),
    }),
    **_family("2012.12877", "apache-2.0", EVALUATED, {
        "deit-ti": ("deit_tiny_patch16_224.fb_in1k", "DeiT-Ti/16", 224, 5.7, 72.2),
        "deit-s": ("deit_small_patch16_224.fb_in1k", "DeiT-S/16", 224, 22.1, 79.9),
        "deit-b": ("deit_base_patch16_224.fb_in1k", "DeiT-B/16", 224, 86.6, 82.0),
        "deit-b-384": ("deit_base_patch16_384.fb_in1k", "DeiT-B/16", 384, 86.9, 83.1),
        "deit-ti-distilled": ("deit_tiny_distilled_patch16_224.fb_in1k", "DeiT-Ti/16-distilled", 224, 5.9, 74.5),
        "deit-s-distilled": ("deit_small_distilled_patch16_224.fb_in1k", "DeiT-S/16-distilled", 224, 22.4, 81.2),
        "deit-b-distilled": ("deit_base_distilled_patch16_224.fb_in1k", "DeiT-B/16-distilled", 224, 87.3, 83.4),
    }),
    **_family("2204.07118", "apache-2.0", EVALUATED, {
        "deit3-s": ("deit3_small_patch16_224.fb_in1k", "DeiT-III-S/16", 224, 22.1, 81.4),
        "deit3-m": ("deit3_medium_patch16_224.fb_in1k", "DeiT-III-M/16", 224, 38.8, 83.1),
        "deit3-b": ("deit3_base_patch16_224.fb_in1k", "DeiT-III-B/16", 224, 86.6, 83.8),
        "deit3-l": ("deit3_large_patch16_224.fb_in1k", "DeiT-III-L/16", 224, 304.4, 84.8),
        "deit3-h": ("deit3_huge_patch14_224.fb_in1k", "DeiT-III-H/14", 224, 632.1, 85.2),
        "deit3-s-in21k-ft": ("deit3_small_patch16_224.fb_in22k_ft_in1k", "DeiT-III-S/16", 224, 22.1, 83.1),
        "deit3-m-in21k-ft": ("deit3_medium_patch16_224.fb_in22k_ft_in1k", "DeiT-III-M/16", 224, 38.8, 84.6),
        "deit3-b-in21k-ft": ("deit3_base_patch16_224.fb_in22k_ft_in1k", "DeiT-III-B/16", 224, 86.6, 85.7),
        "deit3-l-in21k-ft": ("deit3_large_patch16_224.fb_in22k_ft_in1k", "DeiT-III-L/16", 224, 304.4, 87.0),
        "deit3-h-in21k-ft": ("deit3_huge_patch14_224.fb_in22k_ft_in1k", "DeiT-III-H/14", 224, 632.1, 87.2),
    }),
    **_family("2111.06377", "cc-by-nc-4.0", FINE_TUNED, {
        "mae-b": ("vit_base_patch16_224.mae", "ViT-B/16", 224, 85.8, 83.6),
        "mae-l": ("vit_large_patch16_224.mae", "ViT-L/16", 224, 303.3, 85.9),
        "mae-h": ("vit_huge_patch14_224.mae", "ViT-H/14", 224, 630.8, 86.9),
    }),
    **_family("2010.11929", "apache-2.0", FINE_TUNED_384, {
        "vit-b32-in21k": ("vit_base_patch32_224.orig_in21k", "ViT-B/32", 224, 87.5, 81.7),
        "vit-b16-in21k": ("vit_base_patch16_224.orig_in21k", "ViT-B/16", 224, 85.8, 84.5),
        "vit-l32-in21k": ("vit_large_patch32_224.orig_in21k", "ViT-L/32", 224, 305.5, 81.9),
        "vit-l16-in21k": ("vit_large_patch16_224.orig_in21k", "ViT-L/16", 224, 303.3, 85.1),
        "vit-h14-in21k": ("vit_huge_patch14_224.orig_in21k", "ViT-H/14", 224, 630.8, 85.1),
        "vit-r50-b16-in21k": ("vit_base_r50_s16_224.orig_in21k", "R50+ViT-B/16", 224, 97.9, 85.1),
    }),
    **_family("2010.11929", "apache-2.0", EVALUATED, {
        "vit-b16": ("vit_base_patch16_224.orig_in21k_ft_in1k", "ViT-B/16", 224, 86.6, 81.8),
        "vit-b16-384": ("vit_base_patch16_384.orig_in21k_ft_in1k", "ViT-B/16", 384, 86.9, 84.2),
        "vit-l32-384": ("vit_large_patch32_384.orig_in21k_ft_in1k", "ViT-L/32", 384, 306.6, 81.5),
        "vit-r50-b16-384": ("vit_base_r50_s16_384.orig_in21k_ft_in1k", "R50+ViT-B/16", 384, 99.0, 85.0),
    }),
    **_family("2103.00020", "mit", ZERO_SHOT, {
        "clip-b32": ("openai/clip-vit-base-patch32", "CLIP-B/32", 224, 87.8, 63.3),
        "clip-b16": ("openai/clip-vit-base-patch16", "CLIP-B/16", 224, 86.2, 68.3),
        "clip-l14": ("openai/clip-vit-large-patch14", "CLIP-L/14", 224, 304.0, 75.5),
        "clip-l14-336": ("openai/clip-vit-large-patch14-336", "CLIP-L/14-336", 336, 304.3, 76.6),
    }),
    **_family("2212.07143", "apache-2.0", ZERO_SHOT, {
        "openclip-b32": ("vit_base_patch32_clip_224.laion2b", "OpenCLIP-B/32", 224, 87.8, 66.6),
        "openclip-b16": ("vit_base_patch16_clip_224.laion2b", "OpenCLIP-B/16", 224, 86.2, 70.2),
        "openclip-l14": ("vit_large_patch14_clip_224.laion2b", "OpenCLIP-L/14", 224, 304.0, 75.3),
        "openclip-h14": ("vit_huge_patch14_clip_224.laion2b", "OpenCLIP-H/14", 224, 632.1, 78.0),
        "openclip-g14": ("vit_giant_patch14_clip_224.laion2b", "OpenCLIP-g/14", 224, 1012.6, None),
        "openclip-bigg14": ("vit_gigantic_patch14_clip_224.laion2b", "OpenCLIP-bigG/14", 224, 1844.9, 80.1),
    }),
    **_family("2303.15343", "apache-2.0", ZERO_SHOT, {
        "siglip-b16": ("google/siglip-base-patch16-224", "SigLIP-B/16", 224, 92.9, 76.0),
        "siglip-b16-256": ("google/siglip-base-patch16-256", "SigLIP-B/16-256", 256, 92.9, 76.5),
        "siglip-b16-384": ("google/siglip-base-patch16-384", "SigLIP-B/16-384", 384, 93.2, 78.5),
        "siglip-b16-512": ("google/siglip-base-patch16-512", "SigLIP-B/16-512", 512, 93.5, 79.1),
        "siglip-l16-256": ("google/siglip-large-patch16-256", "SigLIP-L/16-256", 256, 316.0, 80.5),
        "siglip-l16-384": ("google/siglip-large-patch16-384", "SigLIP-L/16-384", 384, 316.3, 82.1),
        "siglip-so400m14": ("google/siglip-so400m-patch14-224", "SigLIP-So400m/14", 224, 427.7, 82.0),
        "siglip-so400m14-384": ("google/siglip-so400m-patch14-384", "SigLIP-So400m/14-384", 384, 428.2, 83.1),
    }),
    **_family("2502.14786", "apache-2.0", ZERO_SHOT, {
        "siglip2-b16": ("google/siglip2-base-patch16-224", "SigLIP2-B/16", 224, 92.9, None),
        "siglip2-b16-256": ("google/siglip2-base-patch16-256", "SigLIP2-B/16-256", 256, 92.9, None),
        "siglip2-b16-384": ("google/siglip2-base-patch16-384", "SigLIP2-B/16-384", 384, 93.2, None),
        "siglip2-b16-512": ("google/siglip2-base-patch16-512", "SigLIP2-B/16-512", 512, 93.5, None),
        "siglip2-b32-256": ("google/siglip2-base-patch32-256", "SigLIP2-B/32-256", 256, 94.6, None),
        "siglip2-l16-256": ("google/siglip2-large-patch16-256", "SigLIP2-L/16-256", 256, 316.0, None),
        "siglip2-l16-384": ("google/siglip2-large-patch16-384", "SigLIP2-L/16-384", 384, 316.3, None),
        "siglip2-l16-512": ("google/siglip2-large-patch16-512", "SigLIP2-L/16-512", 512, 316.7, None),
        "siglip2-so400m14": ("google/siglip2-so400m-patch14-224", "SigLIP2-So400m/14", 224, 427.7, None),
        "siglip2-so400m14-384": ("google/siglip2-so400m-patch14-384", "SigLIP2-So400m/14-384", 384, 428.2, None),
        "siglip2-so400m16-256": ("google/siglip2-so400m-patch16-256", "SigLIP2-So400m/16-256", 256, 427.9, None),
        "siglip2-so400m16-384": ("google/siglip2-so400m-patch16-384", "SigLIP2-So400m/16-384", 384, 428.3, None),
        "siglip2-so400m16-512": ("google/siglip2-so400m-patch16-512", "SigLIP2-So400m/16-512", 512, 428.8, None),
        "siglip2-g16-256": ("google/siglip2-giant-opt-patch16-256", "SigLIP2-g-opt/16-256", 256, 1163.2, None),
        "siglip2-g16-384": ("google/siglip2-giant-opt-patch16-384", "SigLIP2-g-opt/16-384", 384, 1163.7, None),
    }),
    **_family("2103.14030", "mit", EVALUATED, {
        "swin-ti": ("swin_tiny_patch4_window7_224.ms_in1k", "Swin-Ti/4", 224, 28.3, 81.4),
        "swin-s": ("swin_small_patch4_window7_224.ms_in1k", "Swin-S/4", 224, 49.6, 83.2),
        "swin-b": ("swin_base_patch4_window7_224.ms_in1k", "Swin-B/4", 224, 87.8, 83.6),
        "swin-b-in21k-ft": ("swin_base_patch4_window7_224.ms_in22k_ft_in1k", "Swin-B/4", 224, 87.8, 85.3),
        "swin-l-in21k-ft": ("swin_large_patch4_window7_224.ms_in22k_ft_in1k", "Swin-L/4", 224, 196.5, 86.3),
        "swin-b-384-in21k-ft": ("swin_base_patch4_window12_384.ms_in22k_ft_in1k", "Swin-B/4-384", 384, 87.9, 86.4),
        "swin-l-384-in21k-ft": ("swin_large_patch4_window12_384.ms_in22k_ft_in1k", "Swin-L/4-384", 384, 196.7, 87.1),
    }),
    **_family("2111.09883", "mit", EVALUATED, {
        "swinv2-ti-w8": ("swinv2_tiny_window8_256.ms_in1k", "SwinV2-Ti/4-w8", 256, 28.3, 81.8),
        "swinv2-ti-w16": ("swinv2_tiny_window16_256.ms_in1k", "SwinV2-Ti/4-w16", 256, 28.3, 82.8),
        "swinv2-s-w8": ("swinv2_small_window8_256.ms_in1k", "SwinV2-S/4-w8", 256, 49.7, 83.8),
        "swinv2-s-w16": ("swinv2_small_window16_256.ms_in1k", "SwinV2-S/4-w16", 256, 49.7, 84.2),
        "swinv2-b-w8": ("swinv2_base_window8_256.ms_in1k", "SwinV2-B/4-w8", 256, 87.9, 84.2),
        "swinv2-b-w16": ("swinv2_base_window16_256.ms_in1k", "SwinV2-B/4-w16", 256, 87.9, 84.6),
        "swinv2-b-w16-in21k-ft": (
            "swinv2_base_window12to16_192to256.ms_in22k_ft_in1k", "SwinV2-B/4-w12to16", 256, 87.9, 86.3,
        ),
        "swinv2-b-384-in21k-ft": (
            "swinv2_base_window12to24_192to384.ms_in22k_ft_in1k", "SwinV2-B/4-w12to24", 384, 87.9, 87.1,
        ),
        "swinv2-l-w16-in21k-ft": (
            "swinv2_large_window12to16_192to256.ms_in22k_ft_in1k", "SwinV2-L/4-w12to16", 256, 196.7, 86.9,
        ),
        "swinv2-l-384-in21k-ft": (
            "swinv2_large_window12to24_192to384.ms_in22k_ft_in1k", "SwinV2-L/4-w12to24", 384, 196.7, 87.5,
        ),
    }),
    **_family("1912.11370", "apache-2.0", EVALUATED, {
        "bit-r50x1": ("resnetv2_50x1_bit.goog_in21k_ft_in1k", "BiT-R50x1", 448, 25.5, 80.4),
        "bit-r101x1": ("resnetv2_101x1_bit.goog_in21k_ft_in1k", "", 448, 44.5, 82.3),
    }),
    **_family("1912.11370", "apache-2.0", FINE_TUNED_448, {
        "bit-r50x1-in21k": ("resnetv2_50x1_bit.goog_in21k", "BiT-R50x1", 224, 68.3, 80.4),
        "bit-r101x1-in21k": ("resnetv2_101x1_bit.goog_in21k", "", 224, 87.3, 82.3),
    }),
}  # fmt: skip


LICENSES = {entry.repository: entry.license for entry in CATALOG.values()}  # for repositories without a model card
# names by preset
BY_PRESET: dict[str, list[str]] = {}
for _name, _entry in CATALOG.items():
    if _entry.preset:
        BY_PRESET.setdefault(_entry.preset, []).append(_name)


def name_hint(name: str) -> str:
    """Suggest a catalog name for a misspelt name or for a timm or torch.hub model. Return "" if nothing matches.

    >>> name_hint("dinov2-small")
    " (did you mean 'dinov2-s'?)"
    >>> name_hint("vit_small_patch14_dinov2.lvd142m")
    ": use 'dinov2-s' (hf-hub:timm/vit_small_patch14_dinov2.lvd142m)"
    >>> name_hint("vit_base_patch16_siglip_224.webli")
    ": if it is a timm model, use 'hf-hub:timm/vit_base_patch16_siglip_224.webli'"
    >>> name_hint("dinov2_vitb14_reg")  # torch.hub
    ": use 'dinov2-b-reg' (hf-hub:timm/vit_base_patch14_reg4_dinov2.lvd142m)"
    """
    name = name.removeprefix(f"{OWNER}/")
    if original := re.fullmatch(r"dinov2_vit([sblg])14(_reg)?", name):
        name = CATALOG[f"dinov2-{original[1]}{'-reg' * bool(original[2])}"].model
    if original := re.fullmatch(r"dinov3_vit([sblh])16(plus)?", name):
        name = CATALOG[f"dinov3-{original[1]}{'-plus' * bool(original[2])}"].model
    known = {key: entry for key, entry in CATALOG.items() if name in (entry.model, entry.model.split(".")[0])}
    if known:
        return f": use {' or '.join(f'{key!r} ({entry.source})' for key, entry in known.items())}"
    if re.fullmatch(r"\w+_patch\d+\w*(\.\w+)?", name):
        return f": if it is a timm model, use '{HUB_PREFIX}{OWNER}/{name}'"
    return suggestion(name, CATALOG)


def hub_hint(name: str) -> str:
    """Return a hint on loading `owner/name` from the Hub. Return "" if the name has another form.

    >>> hub_hint("facebook/dinov2-small")
    "; if it is on the Hugging Face Hub, use 'hf-hub:facebook/dinov2-small'"
    """
    repository = re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name)
    return f"; if it is on the Hugging Face Hub, use '{HUB_PREFIX}{name}'" if repository else ""
