"""Base class of tasks without labels, whose loss is computed for each image.

b: batch; n: images.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.common.checks import fail
from vitreous.data import Batch
from vitreous.inference.forward_pass import evaluation_mode, mixed_precision
from vitreous.model.protocol import Model
from vitreous.tasks.base import Task
from vitreous.tasks.config import TrainConfig


@dataclass(frozen=True)
class Losses:
    """Loss of each image; NaN for unreadable images."""

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


class Unlabelled(Task):
    """Base class of tasks that train and evaluate with a loss per image and no labels."""

    metric, larger_is_better, labelled = "loss", False, False

    def __init__(self, config: TrainConfig, model: Model):
        if config.train_only not in (None, "all"):
            fail("train_only", config.train_only, f"'all' for --task {config.task}")
        super().__init__(config, model)

    def losses(self, module: nn.Module, *inputs: Tensor) -> Float[Tensor, "b"]:
        """Return the loss of each image. `inputs` are those of `loss` without the image weights."""
        raise NotImplementedError

    def prepare_evaluation(self, batch: Batch, device: torch.device) -> tuple[Tensor, ...]:
        """Return the inputs of `losses` and the image weights, without augmentation."""
        raise NotImplementedError

    def loss(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        *rest, weights = inputs
        losses = self.losses(module, *rest)
        return (losses * weights).sum(), torch.zeros_like(weights.sum())

    def evaluate(self, module: nn.Module, batches: Iterable[Batch], precision: torch.dtype) -> Losses:
        parts, device = [], next(module.parameters()).device
        with evaluation_mode(module):
            for batch in batches:
                *inputs, readable = self.prepare_evaluation(batch, device)
                with mixed_precision(device, precision):
                    losses = self.losses(module, *inputs).float()
                losses = torch.where(readable > 0, losses, torch.nan).cpu()
                parts.append(Losses(losses, batch.indices.cpu(), batch.problems))
        return Losses.join(parts)
