"""Types for suspicious images that are found with a model, and their output in the terminal."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from vitreous.common.text import one_line, plural

SHOWN = 10  # maximum number of items printed per list


@dataclass(frozen=True)
class Sample:
    """Split, label and name of an image. The label is empty for unlabelled data."""

    split: str
    label: str
    name: str


@dataclass(frozen=True)
class LabelError(Sample):
    """An image whose label is probably wrong."""

    suggested: str
    confidence: float  # out-of-sample probability of the given label
    probability: float  # probability of the suggested label


@dataclass(frozen=True)
class NearDuplicates:
    """Images of the same photo that differ in size, compression, crop or mirroring."""

    samples: list[Sample]
    correlation: float  # correlation of the most similar pair, at most 1

    @property
    def leaks(self) -> bool:
        """True if the images are in different splits."""
        return len({sample.split for sample in self.samples}) > 1


@dataclass(frozen=True)
class Outlier(Sample):
    """An image far from its nearest neighbours in feature space."""

    distance: float  # mean cosine distance to the nearest images


@dataclass(frozen=True)
class ModelFindings:
    """Suspicious images found with a model. Each list starts with the most suspicious images."""

    checkpoint: str
    image_size: tuple[int, int]
    accuracy: float | None = None  # accuracy of the cross-validated classifier; None without labels
    label_errors: list[LabelError] = field(default_factory=list)
    near_leaks: list[NearDuplicates] = field(default_factory=list)  # in different splits
    near_duplicates: list[NearDuplicates] = field(default_factory=list)  # in the same split
    outliers: list[Outlier] = field(default_factory=list)
    page: str | None = None

    def lines(self) -> Iterator[RenderableType]:
        """Yield tables and remarks for the terminal. Leaks are not included; the caller prints them as problems."""
        size = " x ".join(map(str, self.image_size))
        yield f"[bold]suspicious images according to {escape(self.checkpoint)}[/bold] at {size} pixels"
        if self.accuracy is not None:
            about = f"the cross-validated classifier agrees with {self.accuracy:.1%} of the labels"
            yield f"likely label errors: {plural(len(self.label_errors), 'image')} ({about})"
        if self.label_errors:
            table = Table("image", "label", "suggested", "p(label)", "p(suggested)", box=None)
            for error in self.label_errors[:SHOWN]:
                words = (escape(one_line(word)) for word in (error.name, error.label, error.suggested))
                table.add_row(*words, f"{error.confidence:.3f}", f"{error.probability:.3f}")
            yield table
        if self.near_duplicates:
            extra = sum(len(group.samples) - 1 for group in self.near_duplicates)
            first = " = ".join(one_line(sample.name) for sample in self.near_duplicates[0].samples)
            yield escape(f"near duplicates within a split: {plural(extra, 'image')}, e.g. {first}")
        if self.outliers:
            yield f"outliers: {plural(len(self.outliers), 'image')}"
            table = Table("image", "label", "distance", box=None)
            for outlier in self.outliers[:SHOWN]:
                table.add_row(
                    escape(one_line(outlier.name)), escape(one_line(outlier.label)), f"{outlier.distance:.3f}"
                )
            yield table
        if self.page is not None:
            yield f"page with these images: {escape(self.page)}"
