"""What a data set is: labelled pictures that can be read in any order, in a training, a validation and a test part.

A label is for a picture, a mask for its pixels. Masks are an optional side of a source: one that has them says by
`mask_classes` what their ids mean.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

# An encoded file (JPEG, PNG, ...), or pixels [height, width, channels] of uint8.
Picture = bytes | np.ndarray


class Source(ABC):
    """Pictures, their labels and their names. Reading is by index and touches nothing else."""

    classes: tuple[str, ...]
    labels: np.ndarray  # int64 [n], indices into classes
    mask_classes: tuple[str, ...] = ()  # what the ids of masks mean; empty where there are no masks
    mask_ids: tuple[int, ...] = ()  # of each of these classes, in the files; empty where there are none

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def picture(self, index: int) -> Picture:
        """The picture as it is stored. Decoding it is the reader's work, so that workers can do it in parallel."""

    @abstractmethod
    def name(self, index: int) -> str:
        """What reports and errors call it: a path below the data's root, a member of a shard, `digits[17]`."""

    def mask(self, index: int) -> np.ndarray:
        """The class of every pixel: uint8 [h, w] of the upright picture's size, indices into mask_classes or IGNORED.

        Decoded, unlike a picture: what a stored id means only the source knows, and no part of a PNG can be skipped.
        """
        raise ValueError(f"{self.name(index)} has no mask: this data set has labels for pictures, not for pixels")


@dataclass(frozen=True)
class DataSet:
    """The parts of a data set. All of them know the same classes, in the same order."""

    name: str
    train: Source
    val: Source
    test: Source | None
    note: str  # how the parts came about, to be said to the user
    split: bool = False  # whether val was held out of the pictures here, by seed and fraction

    @property
    def classes(self) -> tuple[str, ...]:
        return self.train.classes

    @property
    def mask_classes(self) -> tuple[str, ...]:
        return self.train.mask_classes


class ArraySource(Source):
    """Pictures of one size, in memory."""

    def __init__(self, images: np.ndarray, labels: np.ndarray, classes: tuple[str, ...], name: str):
        self.images = images  # uint8 [n, h, w, c]
        self.labels = labels.astype(np.int64)
        self.classes = classes
        self._name = name

    def picture(self, index: int) -> Picture:
        return self.images[index]

    def name(self, index: int) -> str:
        return f"{self._name}[{index}]"


class Subset(Source):
    """Some pictures of another source, in a given order, with their masks if it has any."""

    def __init__(self, source: Source, indices: np.ndarray):
        self.source, self.indices = source, indices
        self.labels, self.classes = source.labels[indices], source.classes
        self.mask_classes, self.mask_ids = source.mask_classes, source.mask_ids

    def picture(self, index: int) -> Picture:
        return self.source.picture(int(self.indices[index]))

    def name(self, index: int) -> str:
        return self.source.name(int(self.indices[index]))

    def mask(self, index: int) -> np.ndarray:
        return self.source.mask(int(self.indices[index]))
