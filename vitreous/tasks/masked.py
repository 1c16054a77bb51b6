"""Learning without labels: the tasks that hide patches and fill them in, MAE and the paper's masked patch prediction.

b: batch; n: patches.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.data.augment.config import Augmentation
from vitreous.data.augment.pipeline import augment
from vitreous.data.loader import Batch
from vitreous.data.rng import SampleRng
from vitreous.model.inputs import normalise
from vitreous.model.masked import Filled, MaskedAutoencoder, MaskedPatchPrediction
from vitreous.model.vit import ViT
from vitreous.tasks.base import Task
from vitreous.training.config import Masking


@dataclass(frozen=True)
class Losses:
    """How well hidden patches were filled in, picture by picture."""

    losses: Float[Tensor, "n"]
    indices: Tensor
    problems: list[str]

    def metrics(self) -> dict[str, Any]:
        read = self.losses[self.losses.isfinite()]
        loss = read.mean().item() if len(read) else float("nan")
        return {"loss": loss, "count": len(read), "unreadable": len(self.losses) - len(read)}

    @classmethod
    def join(cls, parts: Sequence["Losses"]) -> "Losses":
        losses, indices = (torch.cat([getattr(part, name) for part in parts]) for name in ("losses", "indices"))
        order = torch.from_numpy(np.unique(indices.numpy(), return_index=True)[1])
        problems = list(dict.fromkeys(problem for part in parts for problem in part.problems))
        return cls(losses[order], indices[order], problems)


class FillIn(Task):
    """A picture with holes, and the loss of what the model puts into them."""

    best, larger_is_better = "loss", False

    def __init__(self, encoder: ViT, kind: str, masking: Masking, augmentation: Augmentation, seed: int):
        self.encoder, self.kind, self.masking, self.seed = encoder, kind, masking, seed
        self.augmentation = dataclasses.replace(augmentation, mixup=0.0, cutmix=0.0)
        self._module = self._build()

    def _build(self) -> MaskedAutoencoder | MaskedPatchPrediction:
        config, rate = self.encoder.config, self.masking.mask_rate
        with next(self.encoder.parameters()).device:
            if self.kind == "mpp":
                return MaskedPatchPrediction(self.encoder, self.masking.mpp_target, 0.5 if rate is None else rate)
            width, depth = self.masking.decoder_beside(config)
            return MaskedAutoencoder(self.encoder, 0.75 if rate is None else rate, width, depth, max(width // 32, 1))

    def module(self) -> nn.Module:
        return self._module

    def prepare(self, batch: Batch) -> tuple[Tensor, ...]:
        rng = SampleRng(self.seed, batch.epoch, batch.keys)
        return self._parts(augment(batch.images, rng, self.augmentation), rng, batch.labels)

    def _parts(self, unit: Tensor, rng: SampleRng, labels: Tensor) -> tuple[Tensor, ...]:
        """The pictures, once more with pixels in [0, 1], the numbers that say what is hidden, and the weights."""
        (gh, gw), sets = self.encoder.config.grid, 3 if self.kind == "mpp" else 1
        numbers = rng.to(unit.device).uniform("hidden", sets * gh * gw).view(-1, sets, gh * gw)
        readable = (labels >= 0).float().to(unit.device, non_blocking=True)
        return normalise(unit, self.encoder.config.preprocessing), unit, numbers, readable

    def fill(self, module: nn.Module, images: Tensor, unit: Tensor, numbers: Tensor) -> Filled:
        return module(images, unit, numbers) if self.kind == "mpp" else module(images, numbers[:, 0])

    def loss(self, module: nn.Module, parts: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        images, unit, numbers, weights = parts
        losses = self.fill(module, images, unit, numbers).losses
        return (losses * weights).sum(), torch.zeros_like(weights.sum())

    @torch.no_grad()
    def measure(
        self, module: nn.Module, batches: Iterable[Batch], device: torch.device, precision: torch.dtype
    ) -> Losses:
        """What is hidden of a picture is always the same, so that evaluations can be compared."""
        before, parts, mixed = module.training, [], precision != torch.float32
        module.eval()
        for batch in batches:
            *inputs, readable = self.show(batch, device)
            with torch.autocast(device.type, precision if mixed else torch.bfloat16, enabled=mixed):
                losses = self.fill(module, *inputs).losses.float()
            losses = torch.where(readable > 0, losses, torch.nan).cpu()
            parts.append(Losses(losses, batch.indices.cpu(), batch.problems))
        module.train(before)
        return Losses.join(parts)

    def show(self, batch: Batch, device: torch.device) -> tuple[Tensor, ...]:
        """A batch as `measure` shows it."""
        unit = batch.images.to(device, non_blocking=True).float() / 255
        return self._parts(unit, SampleRng(self.seed, 0, batch.keys.cpu()), batch.labels)
