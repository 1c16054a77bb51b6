"""Parity with every ViT in timm, loaded from a bare weight file without a config.

Each architecture is built with one block and random weights, and saved twice: under a neutral file name and under the
model name. Vitreous must load a model exactly or reject it. With a neutral name, where the tensors can be ambiguous, a
wrong guess is allowed if Vitreous warned about it. `python -m benchmarks.timm_bare_files [PATTERN]` prints one line per
file and the counts. It exits with status 1 if a model was wrong without a warning, or wrong despite its name.
"""

import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

import vitreous
from vitreous.weights.io.errors import BadCheckpoint
from vitreous.weights.peers import repair_torchvision

MODULES = (
    *("vision_transformer", "deit", "vision_transformer_hybrid", "vision_transformer_relpos", "vision_transformer_sam"),
    *("beit", "eva", "naflexvit"),
)
TOLERANCE = 1e-5  # relative to the largest output


def architectures(pattern: str = "*") -> list[str]:
    repair_torchvision()
    import timm

    return [name for module in MODULES for name in timm.list_models(pattern, module=module)]


@torch.no_grad()
def build(name: str, **options: Any) -> nn.Module:
    """Build a timm model with one block and random values in all parameters."""
    repair_torchvision()
    import timm

    torch.manual_seed(0)
    if "sapiens2" in name:
        options["num_kv_heads"] = (None,)  # for the one block
    model: nn.Module = timm.create_model(name, **{"depth": 1, "num_classes": 10, **options}).eval()
    for key, parameter in model.named_parameters():
        if parameter.ndim > 1 and key.endswith("weight"):
            nn.init.normal_(parameter, std=1.5 * parameter[0].numel() ** -0.5)
        else:
            nn.init.normal_(parameter, mean=0.5 if "norm" in key and key.endswith("weight") else 0.0, std=0.4)
    return model


@torch.no_grad()
def outcome(model: nn.Module, file: Path) -> str:
    """Load a weight file and return "exact" or "wrong" with "warned" or "silent", or "refused" with the reason."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = vitreous.load(file)
        except BadCheckpoint as reason:
            return f"refused: {str(reason).replace(str(file), 'it')}"
    warned = "warned" if any(issubclass(warning.category, UserWarning) for warning in caught) else "silent"
    height, width = found.config.image_size  # smaller than in timm if patches do not cover the image
    size: tuple[int, int] = model.get_submodule("patch_embed").img_size  # type: ignore[assignment]
    images = torch.randn(2, 3, *size)
    expected, actual = model(images), found(images[:, :, :height, :width])
    if expected.shape != actual.shape:
        return f"wrong, {warned} (shapes {list(actual.shape)} and {list(expected.shape)})"
    error = ((actual - expected).abs().max() / expected.abs().max()).item()
    return f"{'exact' if error < TOLERANCE else 'wrong'}, {warned} ({error:.1e})"


def main() -> None:
    """Print the results and their counts."""
    counts: dict[str, Counter[str]] = {"neutral name": Counter(), "own name": Counter()}
    failed = []
    for name in architectures(*sys.argv[1:]):
        model = build(name)
        tensors = {key: tensor.contiguous() for key, tensor in model.state_dict().items()}
        with tempfile.TemporaryDirectory() as folder:
            for kind, stem in (("neutral name", "weights"), ("own name", name)):
                file = Path(folder) / f"{stem}.safetensors"
                save_file(tensors, file)
                result = outcome(model, file)
                print(f"{name:45} {kind:13} {result[:200]}", flush=True)
                counts[kind][result.split(":")[0].split(" (")[0]] += 1
                if result.startswith("wrong") and (kind == "own name" or "silent" in result):
                    failed.append(f"{name} ({kind})")
    for kind, results in counts.items():
        print(f"{kind}: " + ", ".join(f"{count} {result}" for result, count in results.most_common()))
    print(f"wrong without a warning or despite the model name: {', '.join(failed) or 'none'}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
