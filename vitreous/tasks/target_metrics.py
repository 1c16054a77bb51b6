"""Base class of evaluations of images with several targets.

n: images; b: batch; k: targets.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from vitreous.common.progress import Report, silent
from vitreous.data.loader import Batch
from vitreous.data.sources.base import Source
from vitreous.inference.predictor import Embedder
from vitreous.model.protocol import ModelConfig
from vitreous.model.top_labels import class_names
from vitreous.tasks.classification_metrics import batch_scores, source_scores

E = TypeVar("E", bound="TargetEvaluation")


@dataclass(frozen=True)
class TargetEvaluation:
    """Outputs of a model for n images, and their targets. Metrics exclude unreadable images."""

    scores: Float[Tensor, "n k"]  # float32, on the CPU; 0 for unreadable images
    targets: Shaped[Tensor, "n k"]  # as `Source.targets`
    readable: Bool[Tensor, "n"]
    indices: Int[Tensor, "n"]  # positions of the images in their source
    config: ModelConfig  # names and meaning of the outputs
    problems: list[str] = field(default_factory=list)  # unreadable images, each with the reason

    @classmethod
    def of(
        cls: type[E],
        scores: Float[Tensor, "b k"],
        targets: Shaped[Tensor, "b k"] | None,
        readable: Bool[Tensor, "b"],
        indices: Int[Tensor, "b"],
        config: ModelConfig,
        problems: Sequence[str] = (),
    ) -> E:
        """Evaluate outputs on any device and in any precision."""
        assert targets is not None, "the data has no targets"
        readable = readable.cpu()
        scores = torch.where(readable[:, None], scores.float().cpu(), 0)
        if broken := int((~scores.isfinite().all(1)).sum()):
            raise ValueError(f"the outputs of {broken} of {len(scores)} images are infinite or NaN")
        return cls(scores, targets.cpu(), readable, indices.cpu(), config, list(problems))

    @classmethod
    def of_batches(
        cls: type[E],
        module: nn.Module,
        batches: Iterable[Batch],
        config: ModelConfig,
        precision: torch.dtype = torch.float32,
        flip: bool = False,
    ) -> E:
        """Evaluate a module on batches from a loader. `flip` averages outputs with those of the mirrored images."""
        device = next(module.parameters()).device
        scored = batch_scores(module, batches, device, config.preprocessing, precision, flip, config.output)
        return cls.join([cls.of_batch(batch, scores, config) for batch, scores in scored])

    @classmethod
    def of_batch(cls: type[E], batch: Batch, scores: Float[Tensor, "b k"], config: ModelConfig) -> E:
        return cls.of(scores, batch.targets, batch.labels >= 0, batch.indices, config, batch.problems)

    @classmethod
    def of_source(
        cls: type[E], predictor: Embedder, source: Source, rank: int = 0, ranks: int = 1, progress: Report = silent
    ) -> E:
        """Evaluate a predictor on the images of process `rank` of `ranks`."""
        assert source.targets is not None, "the data has no targets"
        targets, config = torch.from_numpy(source.targets), predictor.config
        none = torch.zeros(0, dtype=torch.int64)  # there may be more processes than images
        parts = [cls.of(torch.zeros(0, config.num_classes), targets[none], none.bool(), none, config)]
        for indices, scores, readable, problems in source_scores(predictor, source, rank, ranks, progress):
            parts.append(cls.of(scores, targets[indices], readable, indices, config, problems))
        return cls.join(parts)

    @classmethod
    def join(cls: type[E], parts: Sequence[E]) -> E:
        """Merge evaluations in the order of their indices, counting each image once."""
        if not parts:
            raise ValueError("nothing to join: no batch was evaluated")
        names = ("scores", "targets", "readable", "indices")
        joined = {name: torch.cat([getattr(part, name) for part in parts]) for name in names}
        order = torch.from_numpy(np.unique(joined["indices"].numpy(), return_index=True)[1])
        rows: dict[str, Any] = {name: tensor[order] for name, tensor in joined.items()}
        problems = dict.fromkeys(problem for part in parts for problem in part.problems)
        return replace(parts[0], **rows, problems=list(problems))

    @property
    def names(self) -> tuple[str, ...]:
        return class_names(self.config)

    def metrics(self) -> dict[str, Any]:
        raise NotImplementedError

    def counts(self) -> dict[str, int]:
        """Return the numbers of readable and unreadable images; raise if no image is readable."""
        count = int(self.readable.sum())
        if not count:
            raise ValueError(f"nothing to evaluate: none of the {len(self.readable)} images could be read")
        return {"count": count, "unreadable": len(self.readable) - count}
