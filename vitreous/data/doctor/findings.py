"""Types for images that a check has found, and for the suspicions of a model about them."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from vitreous.common.text import one_line, plural

SHOWN = 10  # maximum number of items printed per list


@dataclass(frozen=True)
class Sample:
    """Split, label and name of an image; the label is empty for unlabelled data."""

    split: str
    label: str
    name: str


@dataclass(frozen=True)
class LabelError(Sample):
    """An image whose label is probably wrong."""

    suggested: str
    confidence: float  # out-of-sample probability of the given label
    probability: float  # of the suggested label


@dataclass(frozen=True)
class NearDuplicates:
    """Images that show the same photo in another size, compression or crop, or mirrored."""

    samples: list[Sample]
    correlation: float  # of the most similar pair, at most 1

    @property
    def leaks(self) -> bool:
        """True if the images are in different splits."""
        return len({sample.split for sample in self.samples}) > 1


@dataclass(frozen=True)
class Outlier(Sample):
    """An image that differs from all others."""

    distance: float  # mean cosine distance to the nearest images


@dataclass(frozen=True)
class ModelFindings:
    """Suspicious images found with a model. All lists are ranked, the most suspicious first."""

    checkpoint: str
    image_size: tuple[int, int]
    accuracy: float | None = None  # of the cross-validated classifier; None without labels
    label_errors: list[LabelError] = field(default_factory=list)
    near_leaks: list[NearDuplicates] = field(default_factory=list)  # in different splits
    near_duplicates: list[NearDuplicates] = field(default_factory=list)  # in the same split
    outliers: list[Outlier] = field(default_factory=list)
    page: str | None = None

    def lines(self) -> Iterator[RenderableType]:
        """Yield the tables and remarks for the terminal. Leaks are problems, which the caller prints."""
        size = " x ".join(map(str, self.image_size))
        yield f"[bold]suspicious images according to {escape(self.checkpoint)}[/bold] at {size} pixels"
        if self.accuracy is not None:
            about = f"the cross-validated classifier agrees with {self.accuracy:.1%} of the labels"
            yield f"likely label errors: {plural(len(self.label_errors), 'image')} ({about})"
        if self.label_errors:
            table = Table("image", "label", "suggested", "p(label)", "p(suggested)", box=None)
            for one in self.label_errors[:SHOWN]:
                words = (escape(one_line(word)) for word in (one.name, one.label, one.suggested))
                table.add_row(*words, f"{one.confidence:.3f}", f"{one.probability:.3f}")
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
            yield f"images: {escape(self.page)}"
