"""Foreground segmentation by the first principal component of patch features: mean IoU on Oxford-IIIT Pets.

The foreground is computed as in `vitreous explain`: the first component of each image, thresholded with Otsu's method,
without any training. Patches are upsampled to pixels by repetition, and border pixels are ignored.

    python -m benchmarks.pca_foreground dinov2s_reg4.pt PETS       (PETS contains images/, masks/ and classes.txt)
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import torch.nn.functional as F
import tyro

from benchmarks.publish_table import publish
from vitreous.common.device import choose_device
from vitreous.data.loader import BatchSlice, EvalLoader, Reader
from vitreous.data.open import open_masked
from vitreous.data.sources.base import Subset
from vitreous.explanation.pca_and_similarity import foreground
from vitreous.model.inputs import normalise
from vitreous.model.options import IGNORED
from vitreous.model.vit import ViT
from vitreous.weights.load import load_encoder


@dataclass(frozen=True)
class Options:
    """Benchmark options."""

    checkpoint: Annotated[Path, tyro.conf.Positional]
    data: Annotated[str, tyro.conf.Positional]
    image_size: int = 224
    pictures: int = 500  # evenly spaced in the test or val split
    object: str = "pet"
    ignore: tuple[str, ...] = ("border",)
    device: str = "auto"
    out: Path = Path("runs/bench/pca_foreground.json")


@dataclass(frozen=True)
class Result:
    checkpoint: str
    pictures: int
    iou: float  # of the object, mean over images
    above_half: float  # fraction of images with an IoU above 0.5
    everything: float  # baseline: IoU if all pixels are foreground


@torch.no_grad()
def main(options: Options) -> Result:
    data = open_masked(options.data, ignore=options.ignore)
    source = data.test or data.val
    places = torch.linspace(0, len(source) - 1, min(options.pictures, len(source))).long()
    model = load_encoder(options.checkpoint, options.image_size)
    assert isinstance(model, ViT)
    device = choose_device(options.device, torch.device("cpu"))
    model, config, wanted = model.float().to(device).eval(), model.config, data.mask_classes.index(options.object)
    reader = Reader(Subset(source, places.numpy()), config.image_size, 3, config.preprocessing, masks=True)
    found, everything = [], []
    for batch in EvalLoader(reader, BatchSlice(16), 2):
        assert batch.masks is not None
        features = model.features(normalise(batch.images.to(device).float() / 255, config.preprocessing))
        for patches, mask in zip(features.patches, batch.masks, strict=True):
            inside = foreground(patches, features.grid)[1].float()
            pixels = F.interpolate(inside[None, None].cpu(), mask.shape, mode="nearest")[0, 0] > 0.5
            known, truth = mask != IGNORED, mask == wanted
            if truth.any():
                union = ((pixels | truth) & known).sum()
                found.append(float((pixels & truth).sum() / union))
                everything.append(float(truth.sum() / known.sum()))
    ious = torch.tensor(found)
    result = Result(
        options.checkpoint.name,
        len(found),
        float(ious.mean()),
        float((ious > 0.5).float().mean()),
        sum(everything) / len(everything),
    )
    row = [result.checkpoint, str(result.pictures)]
    row += [f"{value:.4f}" for value in (result.iou, result.above_half, result.everything)]
    columns = ["checkpoint", "images", "mean IoU", "above 0.5", "all-foreground IoU"]
    publish(f"first component, {options.image_size} px", columns, [row], [result], options.out)
    return result


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
