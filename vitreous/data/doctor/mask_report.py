"""`vitreous data check` of pictures with masks: what each class covers, and everything that is wrong with the masks."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table

from vitreous.data.doctor.findings import Report
from vitreous.data.sources.base import Source
from vitreous.data.split import plural
from vitreous.model.options import IGNORED


@dataclass(frozen=True)
class Cover:
    """What the pixels of one part are."""

    pictures: list[int]  # how many have each class
    shares: list[float]  # of all labelled pixels
    ignored: float  # of all pixels


@dataclass(frozen=True)
class MaskReport:
    """`pictures` says what is known of them as files; it is missing where the masks have problems."""

    name: str
    problems: list[str]
    classes: tuple[str, ...] = ()
    cover: dict[str, Cover] | None = None  # by part
    pictures: Report | None = None

    @property
    def mask_problems(self) -> list[str]:
        """What is wrong with the masks, and classes that train lacks."""
        return [*self.problems, *unlearned(self.classes, self.cover or {})]

    @property
    def count(self) -> int:
        return len(self.mask_problems) + (self.pictures.problems if self.pictures is not None else 0)

    def to_dict(self) -> dict[str, Any]:
        """For `json.dumps`."""
        cover = {part: vars(one) for part, one in (self.cover or {}).items()}
        pictures = self.pictures.to_dict() if self.pictures is not None else None
        return {
            "name": self.name,
            "problems": self.count,
            "mask_problems": self.mask_problems,
            "classes": list(self.classes),
            "cover": cover,
            "pictures": pictures,
        }

    def __rich_console__(self, console: Console, options: object) -> Iterator[RenderableType]:
        if self.pictures is not None and self.cover is not None:
            yield f"[bold]{escape(self.name)}[/bold]  {escape(self.pictures.note)}"
            table = Table("class of pixels", *(f"{part}: pictures, share" for part in self.cover), box=None)
            for index, name in enumerate(self.classes):
                cells = [f"{one.pictures[index]:,}, {one.shares[index]:.1%}" for one in self.cover.values()]
                table.add_row(escape(name), *cells)
            table.add_row("ignored", *(f"{one.ignored:.1%}" for one in self.cover.values()))
            yield table
            yield from self.pictures.remarks()
            yield from self.pictures.findings()
        labels = self.pictures.label_problems if self.pictures is not None else []
        for problem in [*labels, *self.mask_problems]:
            yield f"[red]masks[/red]: {escape(problem)}"
        if self.count:
            yield f"[bold red]{plural(self.count, 'problem')}[/bold red]"
        else:
            yield "[bold green]no problems[/bold green]"


def unlearned(classes: tuple[str, ...], cover: dict[str, Cover]) -> list[str]:
    """Classes that are asked for but cannot be learned: other parts have them, and train has no pixel of them."""
    problems = []
    for part, one in cover.items():
        lacking = [i for i, n in enumerate(one.pictures) if n and "train" in cover and not cover["train"].pictures[i]]
        if lacking:
            shown = ", ".join(f"{classes[i]!r} ({one.shares[i]:.1%} of its pixels)" for i in lacking[:5])
            more = f" and {len(lacking) - 5} more" if len(lacking) > 5 else ""
            problems.append(
                f"{part} has {shown}{more}, which no mask of train has: give train some, or leave it out with --ignore"
            )
    return problems


def cover_of(source: Source) -> Cover:
    """Every mask is read once more, by threads: decoding releases Python's lock."""
    k = len(source.mask_classes)

    def count(index: int) -> np.ndarray:
        return np.bincount(source.mask(index).ravel(), minlength=IGNORED + 1)

    pictures, pixels = np.zeros(k, np.int64), np.zeros(IGNORED + 1, np.int64)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for counts in pool.map(count, range(len(source))):
            pictures += counts[:k] > 0
            pixels += counts
    labelled = max(int(pixels[:k].sum()), 1)
    return Cover(pictures.tolist(), (pixels[:k] / labelled).tolist(), float(pixels[IGNORED] / max(pixels.sum(), 1)))
