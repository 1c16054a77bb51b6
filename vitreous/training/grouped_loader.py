"""Augments the images of several steps at once, so that short steps do not wait for Python.

Augmentation starts hundreds of small kernels, which takes about as long as a step of a small model. The random numbers
of an image do not depend on its batch, so the images are the same as if each batch were augmented alone, up to rounding
on a GPU.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from vitreous.common.checks import Size
from vitreous.data.loader import Batch, TrainLoader

PIXELS = 1 << 22  # of the images to augment at once, such as 8 batches of 512 images of 32 x 32 pixels


def group_size(batch_size: int, size: Size) -> int:
    """Return the number of batches to augment at once. Mixup pairs neighbours, so batches of odd size are not grouped.

    >>> group_size(512, (32, 32)), group_size(64, (224, 224)), group_size(511, (32, 32))
    (8, 1, 1)
    """
    return 1 if batch_size % 2 else max(PIXELS // (batch_size * size[0] * size[1]), 1)


class GroupedLoader:
    """Adds the inputs of the loss to the batches of another loader. `prepare` computes them for `group` batches.

    Groups are counted from the start of each epoch. A resumed run therefore has the same groups, which matters because
    the rounding of some GPU kernels depends on the number of images.
    """

    def __init__(
        self, loader: TrainLoader, prepare: Callable[[Batch], tuple[Tensor, ...]], steps_per_epoch: int, group: int
    ):
        self.loader, self.prepare = loader, prepare
        self.steps_per_epoch, self.group = steps_per_epoch, group

    def batches(self, start: int, stop: int) -> Iterator[Batch]:
        step = start - start % self.steps_per_epoch % self.group
        batches = self.loader.batches(step, stop)
        while step < stop:
            left = self.steps_per_epoch - step % self.steps_per_epoch  # in this epoch
            for batch in self._prepared(list(itertools.islice(batches, min(self.group, left)))):
                if step >= start:
                    yield batch
                step += 1

    def _prepared(self, group: list[Batch]) -> Iterator[Batch]:
        names = [name for name, value in group[0]._asdict().items() if isinstance(value, Tensor)]
        tensors: dict[str, Any] = {name: torch.cat([getattr(batch, name) for batch in group]) for name in names}
        inputs = [tensor.chunk(len(group)) for tensor in self.prepare(group[0]._replace(**tensors))]
        for batch, *own in zip(group, *inputs, strict=True):
            yield batch._replace(inputs=tuple(own))
