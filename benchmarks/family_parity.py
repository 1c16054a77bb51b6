"""Parity of Swin Transformers and vision towers with other libraries, for random values in all parameters.

In the direction "in", the other library creates and saves a model, and Vitreous loads the file. In the direction "out",
Vitreous saves a preset, and the other library loads it with strict keys. Biases, norms, layer scales, tables of
positions, registers and logit scales are random too. The table shows the largest absolute difference of the logits or
image embeddings at each image size; the first is that of the preset. Models have their published widths and at most
`--blocks` blocks (of each stage). With `--dtype float64`, rounding is smaller than any other difference.

Before that, the names and shapes of all tensors of the complete model are compared, without weights and in both
directions. A tensor that is unexpected, missing or misshapen ends the benchmark. The results contain the number of
parameters in Vitreous and in the other library, which may have more: mask tokens, poolers, biases that are always zero.

    python -m benchmarks.family_parity                                     # timm, transformers and torchvision
    python -m benchmarks.family_parity --only dinov3 --clones ~/src        # also the code of the authors

Clones are folders with the names of the repositories: Swin-Transformer, dinov3, EVA, CLIP and open_clip.
"""

import dataclasses
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
import tyro
from torch import nn

import vitreous
from benchmarks.family_peers import (
    Config,
    DinoV3,
    Eva,
    Microsoft,
    OpenAi,
    OpenClip,
    Peer,
    Size,
    Timm,
    Torchvision,
    Transformers,
)
from benchmarks.publish_table import publish
from vitreous.model.build import build
from vitreous.model.config import ViTConfig
from vitreous.model.meta_build import build_blank
from vitreous.model.options import Interpolation, MixedRotary2d, Rotary2d
from vitreous.model.presets import preset
from vitreous.model.protocol import Model
from vitreous.model.swin_config import SwinConfig, SwinV2
from vitreous.weights.formats.detect_format import format_for
from vitreous.weights.formats.mapping import write_table
from vitreous.weights.load import describe
from vitreous.weights.peers import repair_torchvision

ALLOWED = 2e-5


@dataclass(frozen=True)
class Options:
    """Benchmark options."""

    only: tuple[str, ...] = ()  # parts of the names of presets or libraries, in lower case
    clones: Path | None = None  # folder with clones of the authors' repositories
    blocks: int = 2
    dtype: Literal["float32", "float64"] = "float32"
    images: int = 2
    seed: int = 0
    out: Path = Path("runs/bench/family_parity.json")


@dataclass(frozen=True)
class Result:
    preset: str
    library: str
    direction: str
    size: Size
    largest: float  # largest absolute difference
    spread: float  # standard deviation of the outputs over the images
    parameters: int  # of the complete model
    parameters_of_library: int


TIMM = {
    "Swin-Ti/4": "swin_tiny_patch4_window7_224",
    "Swin-S/4": "swin_small_patch4_window7_224",
    "Swin-B/4": "swin_base_patch4_window7_224",
    "Swin-L/4": "swin_large_patch4_window7_224",
    "Swin-B/4-384": "swin_base_patch4_window12_384",
    "SwinV2-Ti/4-w8": "swinv2_tiny_window8_256",
    "SwinV2-Ti/4-w16": "swinv2_tiny_window16_256",
    "SwinV2-B/4-w12": "swinv2_base_window12_192",
    "SwinV2-B/4-w12to16": "swinv2_base_window12to16_192to256",
    "SwinV2-B/4-w12to24": "swinv2_base_window12to24_192to384",
    "SwinV2-L/4-w12to16": "swinv2_large_window12to16_192to256",
    "DINOv3-S/16": "vit_small_patch16_dinov3_qkvb",
    "DINOv3-S+/16": "vit_small_plus_patch16_dinov3_qkvb",
    "DINOv3-B/16": "vit_base_patch16_dinov3_qkvb",
    "DINOv3-L/16": "vit_large_patch16_dinov3_qkvb",
    "DINOv3-H+/16": "vit_huge_plus_patch16_dinov3_qkvb",
    "DINOv3-7B/16": "vit_7b_patch16_dinov3",
    "EVA02-Ti/14": "eva02_tiny_patch14_224",
    "EVA02-S/14": "eva02_small_patch14_224",
    "EVA02-B/14": "eva02_base_patch14_224",
    "EVA02-L/14": "eva02_large_patch14_224",
    "RoPE-ViT-S/16": "vit_small_patch16_rope_224",
    "RoPE-ViT-S/16-ape": "vit_small_patch16_rope_ape_224",
    "RoPE-ViT-B/16-mixed": "vit_base_patch16_rope_mixed_224",
    "RoPE-ViT-L/16-mixed-ape": "vit_large_patch16_rope_mixed_ape_224",
    "ViT-M/16-rope-reg1-gap": "vit_medium_patch16_rope_reg1_gap_256",
    "ViT-Md/16-rope-reg1-gap": "vit_mediumd_patch16_rope_reg1_gap_256",
    "ViT-Betwixt/16-rope-reg4-gap": "vit_betwixt_patch16_rope_reg4_gap_256",
    "CLIP-B/32": "vit_base_patch32_clip_quickgelu_224",
    "CLIP-L/14-336": "vit_large_patch14_clip_quickgelu_336",
    "OpenCLIP-B/16": "vit_base_patch16_clip_224",
    "OpenCLIP-H/14": "vit_huge_patch14_clip_224",
    "OpenCLIP-g/14": "vit_giant_patch14_clip_224",
    "OpenCLIP-bigG/14": "vit_gigantic_patch14_clip_224",
    "SigLIP-B/16": "vit_base_patch16_siglip_224",
    "SigLIP-L/16-256": "vit_large_patch16_siglip_256",
    "SigLIP-So400m/14-384": "vit_so400m_patch14_siglip_384",
    "SigLIP2-B/32-256": "vit_base_patch32_siglip_256",
    "SigLIP2-So400m/16-256": "vit_so400m_patch16_siglip_256",
    "SigLIP2-g-opt/16-256": "vit_giantopt_patch16_siglip_256",
}
TRANSFORMERS = {
    **dict.fromkeys(("Swin-Ti/4", "Swin-S/4", "Swin-B/4-384", "Swin-L/4"), "SwinForImageClassification"),
    **dict.fromkeys(("SwinV2-Ti/4-w8", "SwinV2-S/4-w16", "SwinV2-B/4-w12to16"), "Swinv2ForImageClassification"),
    **{f"DINOv3-{size}/16": "DINOv3ViTModel" for size in ("S", "S+", "B", "L", "H+", "7B")},
    **dict.fromkeys(("CLIP-B/32", "CLIP-L/14-336", "OpenCLIP-H/14"), "CLIPVisionModelWithProjection"),
    **dict.fromkeys(("SigLIP-B/16", "SigLIP-L/16-256", "SigLIP-So400m/14-384"), "SiglipVisionModel"),
    **dict.fromkeys(("SigLIP2-B/32-256", "SigLIP2-g-opt/16-256"), "SiglipVisionModel"),
    **dict.fromkeys(("SigLIP2-B/16-256", "SigLIP2-So400m/16-256"), "Siglip2VisionModel"),  # NaFlex
}
TORCHVISION = ("Swin-Ti/4", "Swin-S/4", "Swin-B/4", "SwinV2-Ti/4-w8", "SwinV2-S/4-w8", "SwinV2-B/4-w8")
MICROSOFT = (
    *("Swin-Ti/4", "Swin-S/4", "Swin-B/4-384", "Swin-L/4", "SwinV2-Ti/4-w8", "SwinV2-S/4-w16"),
    *("SwinV2-B/4-w12", "SwinV2-B/4-w12to16", "SwinV2-L/4-w12to24"),
)


def cases(clones: Path | None) -> Iterator[tuple[Peer, str, str]]:
    """Yield the library, the preset and the library's name of the model."""
    yield from ((Timm(), model, name) for model, name in TIMM.items())
    yield from ((Transformers(), model, name) for model, name in TRANSFORMERS.items())
    yield from ((Torchvision(), model, "") for model in TORCHVISION)
    if clones is not None:
        yield from ((Microsoft(clones), model, "") for model in MICROSOFT)
        yield from ((DinoV3(clones), f"DINOv3-{size}/16", "") for size in ("S", "S+", "B", "L", "H+", "7B"))
        yield from ((Eva(clones), f"EVA02-{size}/14", "") for size in ("Ti", "S", "B", "L"))
        yield from ((OpenAi(clones), model, "") for model in ("CLIP-B/32", "CLIP-L/14", "CLIP-L/14-336"))
        yield from ((OpenClip(clones), f"OpenCLIP-{size}/14", "") for size in ("L", "H", "g", "bigG"))


def config_for(peer: Peer, model: str, name: str) -> Config:
    """Return the config of a preset with the windows and resampling of the library."""
    config = preset(model)
    if isinstance(config, SwinConfig):
        rule = peer.format if peer.format in ("timm", "torchvision") else "microsoft"
        return config.override({"window_rule": rule})
    assert isinstance(config, ViTConfig)
    if (learned := config.learned_position) is None:
        return config
    way: Interpolation = "timm" if peer.format in ("timm", "clip") else "huggingface"
    learned = dataclasses.replace(learned, interpolation="naflex" if name == "Siglip2VisionModel" else way)
    if isinstance(config.position, Rotary2d | MixedRotary2d):
        return config.override({"position": dataclasses.replace(config.position, learned=learned)})
    return config.override({"position": learned})


def shortened(config: Config, blocks: int) -> Config:
    if isinstance(config, SwinConfig):
        return config.override({"depths": tuple(min(depth, blocks) for depth in config.depths)})
    return config.override({"depth": min(config.depth, blocks)})


def other_sizes(peer: Peer, config: Config) -> list[Size]:
    """Return sizes that the library can run: for Swin also with windows that do not divide or exceed the patches."""
    height, width = config.image_size
    if not isinstance(config, SwinConfig):
        if peer.title == "CLIP":
            return []
        side = config.patch_size[0]
        return [(24 * side, 24 * side)] if peer.title == "EVA" else [(10 * side, 18 * side)]
    if peer.title == "Microsoft":
        return [(height, 2 * width)]
    smaller = peer.title != "transformers" or isinstance(config.version, SwinV2)
    return [(height + 32, width + 96), *([(96, 160)] if smaller else [])]


# ---- Comparison ------------------------------------------------------------------------------------------------------


@torch.no_grad()
def perturb(model: nn.Module) -> nn.Module:
    """Give all parameters random values that roughly keep the scale of the activations."""
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if name == "logit_scale":  # some are above the maximum, log(100)
                nn.init.normal_(parameter, mean=3.5, std=1.0)
            elif name == "proj":  # of CLIP: [width, embedding]
                nn.init.normal_(parameter, std=len(parameter) ** -0.5)
            elif name == "weight" and parameter.ndim == 1:
                nn.init.normal_(parameter, mean=0.8, std=0.3)
            elif name.endswith("weight") and parameter.ndim > 1:
                nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
            else:
                nn.init.normal_(parameter, std=0.3)
    return model.eval()


def compare_names(peer: Peer, config: Config, name: str) -> tuple[int, int]:
    """Compare the names and shapes of all tensors of a complete model, without weights, in both directions.

    Return the number of parameters in Vitreous and in the library.
    """
    format = format_for(peer.format, config)
    ours, constants = build_blank(config), format.extra_tensors(config)
    with torch.device("meta"):
        theirs = peer.create(config, name, config.image_size)
        extra = format.extra_tensors(config)
    with tempfile.TemporaryDirectory() as folder:
        peer.save_sparse(theirs, Path(folder) / peer.file, constants)
        found = describe(Path(folder) / peer.file).config  # fails if a tensor is missing, unexpected or misshapen
    if _shapes(build_blank(found)) != _shapes(ours):
        raise SystemExit(f"{peer.title} has another {config.summary}: {found}")
    written = format.packed(write_table(format.table(config), ours.state_dict()) | extra, config)
    counts = [sum(x.numel() for x in module.parameters()) for module in (ours, theirs)]
    with torch.device("meta"):
        peer.fill(theirs, written)
    return counts[0], counts[1]


def _shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def check(peer: Peer, model: str, name: str, options: Options) -> Iterator[Result]:
    complete = config_for(peer, model, name)
    counts, config = compare_names(peer, complete, name), shortened(complete, options.blocks)
    for direction in ("in", "out"):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / peer.file
            if direction == "in":
                theirs = perturb(peer.create(config, name, config.image_size))
                if peer.title == "timm" and isinstance(config, ViTConfig) and config.projection:
                    nn.init.zeros_(theirs.head.bias)  # type: ignore[arg-type,union-attr]  # a projection has none
                peer.save(theirs, path)
                ours = vitreous.load(path)
            else:
                ours = perturb(build(config))  # type: ignore[assignment]
                vitreous.save(ours, path, format=peer.format, lossy=True)
            for size in (config.image_size, *other_sizes(peer, config)):
                theirs = peer.open(path, config, name, size).eval()
                yield Result(model, peer.title, direction, size, *compare(peer, ours, theirs, size, options), *counts)


@torch.inference_mode()
def compare(peer: Peer, ours: Model, theirs: nn.Module, size: Size, options: Options) -> tuple[float, float]:
    """Return the largest difference of the outputs, and their standard deviation over the images."""
    dtype = getattr(torch, options.dtype)
    images = (torch.randn(options.images, 3, *size) + torch.randn(options.images, 3, 1, 1)).to(dtype)
    expected, found = peer.output(theirs.to(dtype), images), ours.to(dtype)(images)
    return (found - expected).abs().max().item(), expected.std(0).mean().item()


def main(options: Options) -> None:
    repair_torchvision()
    warnings.simplefilter("ignore")
    results = []
    for peer, model, name in cases(options.clones):
        about = f"{model} {peer.title}".lower()
        if options.only and not any(part in about for part in options.only):
            continue
        torch.manual_seed(options.seed)
        for result in check(peer, model, name, options):
            results.append(result)
            print(result, flush=True)
    head = ["model", "library", "direction", "size", "largest difference", "spread of outputs"]
    rows = [
        [
            *(row.preset, row.library, row.direction),
            "{} x {}".format(*row.size),
            f"{row.largest:.1e}",
            f"{row.spread:.2f}",
        ]
        for row in results
    ]
    publish(
        f"{options.images} images, at most {options.blocks} blocks, {options.dtype}", head, rows, results, options.out
    )
    if wrong := [row for row in results if not row.largest <= ALLOWED]:
        raise SystemExit(f"{len(wrong)} outputs differ by more than {ALLOWED:g}")


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
