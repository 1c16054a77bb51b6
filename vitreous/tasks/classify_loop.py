"""A model over every picture of a source: the one loop behind `eval`, and behind the evaluations of a training run.

b: batch; c: channels; h, w: height and width.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitreous.data.loader import Batch
from vitreous.model.inputs import normalise
from vitreous.model.options import Preprocessing
from vitreous.tasks.classification_metrics import Evaluation


@dataclasses.dataclass(frozen=True)
class Answers:
    """What a model answered to some pictures, which ones these are, and which could not be read."""

    evaluation: Evaluation
    indices: Tensor
    problems: list[str]

    def metrics(self) -> dict[str, Any]:
        return self.evaluation.metrics()

    @classmethod
    def join(cls, parts: Sequence["Answers"]) -> "Answers":
        """All answers in the order of the pictures, each picture once."""
        indices = torch.cat([part.indices for part in parts])
        whole = Evaluation.join([part.evaluation for part in parts])
        order = torch.from_numpy(np.unique(indices.numpy(), return_index=True)[1])
        picked = {name: getattr(whole, name)[order] for name in ("labels", "best", "confidence", "losses")}
        problems = list(dict.fromkeys(problem for part in parts for problem in part.problems))
        return cls(dataclasses.replace(whole, **picked), indices[order], problems)


@torch.no_grad()
def answer(
    module: nn.Module,
    batches: Iterable[Batch],
    device: torch.device,
    preprocessing: Preprocessing,
    classes: Sequence[str],
    precision: torch.dtype = torch.float32,
    flip: bool = False,
) -> Answers:
    """The module, in evaluation mode, on every batch. `flip` averages with the mirror image."""
    before, parts = module.training, []
    module.eval()
    mixed = precision != torch.float32
    for batch in batches:
        images = normalise(batch.images.to(device, non_blocking=True).float() / 255, preprocessing)
        with torch.autocast(device.type, precision if mixed else torch.bfloat16, enabled=mixed):
            logits = module(images)
            if flip:
                logits = torch.stack([logits, module(images.flip(-1))]).float().log_softmax(-1).logsumexp(0)
        parts.append(Answers(Evaluation.of(logits, batch.labels, classes), batch.indices.cpu(), batch.problems))
    module.train(before)
    return Answers.join(parts)
