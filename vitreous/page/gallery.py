"""Images of a folder that are compared with the image on the page: nearest images and nearest patches.

g: images of the gallery; n: patches; d: width.
"""

import base64
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from vitreous.common.checks import BadValue, Size
from vitreous.common.text import clean
from vitreous.data.image import UnreadableImage, fit
from vitreous.explanation.attention_and_logit_lens import no_step
from vitreous.inference.forward_pass import evaluation_mode, model_input
from vitreous.inference.predict_images import expand
from vitreous.model.protocol import Model

MAX_IMAGES = 2000
MAX_PATCH_BYTES = 2**30  # patch features in float16; above this, only images are compared
BATCH_SIZE = 8
IMAGES_PER_STEP = 16  # images whose patches are compared without a break
THUMBNAIL = 128  # pixels of the longer side


@dataclass(frozen=True)
class Gallery:
    """Features of all images of a folder, of length 1."""

    names: tuple[str, ...]
    thumbnails: tuple[bytes, ...]  # WebP of the region that the model sees
    pooled: Float[Tensor, "g d"]
    patches: Float[Tensor, "g n d"] | None  # float16, on the CPU; None: too many
    grid: Size

    def nearest(self, pooled: Float[Tensor, "d"], count: int) -> list[dict[str, Any]]:
        """Return the images whose pooled features have the largest cosine similarity."""
        found = (self.pooled @ unit(pooled)).topk(min(count, len(self.names)))
        return [self._entry(i, s) for s, i in zip(found.values.tolist(), found.indices.tolist(), strict=True)]

    def nearest_patches(
        self, patch: Float[Tensor, "d"], count: int, step: Callable[[], None] = no_step
    ) -> list[dict[str, Any]]:
        """Return the most similar patch of each image, for the images with the most similar patches.

        `step` is called every few images.
        """
        if self.patches is None:
            raise BadValue("patch must be omitted: the gallery has too many patches to compare")
        query = unit(patch).half().cpu().float()
        best = []
        for index, image in enumerate(self.patches):
            if index % IMAGES_PER_STEP == 0:
                step()
            best.append((image.float() @ query).max())
        found = torch.stack(best).topk(min(count, len(self.names)))
        entries = []
        for similarity, index in zip(found.values.tolist(), found.indices.tolist(), strict=True):
            place = int((self.patches[index].float() @ query).argmax())
            where = {"row": place // self.grid[1], "column": place % self.grid[1]}
            entries.append(self._entry(index, similarity) | where | {"grid": list(self.grid)})
        return entries

    def _entry(self, index: int, similarity: float) -> dict[str, Any]:
        thumbnail = base64.b64encode(self.thumbnails[index]).decode()
        return {"name": self.names[index], "similarity": round(similarity, 6), "thumbnail": thumbnail}


def unit(vectors: Float[Tensor, "*shape d"]) -> Float[Tensor, "*shape d"]:
    return F.normalize(vectors.float(), dim=-1)


@torch.no_grad()
def build_gallery(folder: Path, model: Model, announce: Callable[[str], None] = print) -> Gallery:
    """Compute the features of all images in a folder. Unreadable files are skipped."""
    folder = folder.expanduser().absolute()  # `expand` reads "-" as standard input
    if not folder.is_dir():
        raise BadValue(f"the gallery must be a folder of images, got {clean(str(folder))}")
    paths = expand([str(folder)])
    if len(paths) > MAX_IMAGES:
        raise BadValue(f"the gallery has {len(paths):,} images; at most {MAX_IMAGES:,} are accepted")
    config, device = model.config, next(model.parameters()).device
    names, thumbnails, pooled, patches, grid = [], [], [], [], (0, 0)
    with evaluation_mode(model.backbone):
        for start in range(0, len(paths), BATCH_SIZE):
            batch = []
            for path in paths[start : start + BATCH_SIZE]:
                try:
                    pixels = fit(path.read_bytes(), config.image_size, config.preprocessing, config.channels)
                except UnreadableImage as error:
                    announce(f"gallery: skipped {clean(path.name)}: {error}")
                    continue
                batch.append(pixels)
                thumbnails.append(_thumbnail(pixels))
                names.append(clean(str(path.relative_to(folder)) if path.is_relative_to(folder) else path.name))
            if not batch:
                continue
            features = model.backbone.features(model_input(torch.stack(batch), device, config.preprocessing))
            pooled.append(unit(model.backbone.pool_features(features)))
            grid = features.grid
            if len(paths) * 2 * features.patches[0].numel() <= MAX_PATCH_BYTES:
                patches.append(unit(features.patches).half().cpu())
    if not names:
        raise BadValue(f"the gallery {clean(str(folder))} has no readable images")
    return Gallery(tuple(names), tuple(thumbnails), torch.cat(pooled), torch.cat(patches) if patches else None, grid)


def _thumbnail(pixels: Tensor) -> bytes:
    bands = pixels.expand(3, -1, -1) if pixels.shape[0] == 1 else pixels[:3]
    image, stored = Image.fromarray(bands.permute(1, 2, 0).contiguous().numpy()), io.BytesIO()
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    image.save(stored, "WEBP", quality=80)
    return stored.getvalue()
