"""The result of checking a data set, to be printed or converted to JSON."""

import io
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table

from vitreous.common.checks import Size
from vitreous.common.text import SafeConsole, one_line, plural

SHOWN = 10  # items of a long list
IMBALANCE = 10  # ratio of the largest to the smallest class


@dataclass(frozen=True)
class Sample:
    """An image by its split, class and name; the label is empty if images have no classes."""

    split: str
    label: str
    name: str


@dataclass(frozen=True)
class UnreadableSample(Sample):
    """An image that cannot be read."""

    reason: str


@dataclass(frozen=True)
class MaskCoverage:
    """The pixels of one split."""

    images: list[int]  # that have each class
    fractions: list[float]  # of each class among all labelled pixels
    ignored: float  # fraction of all pixels


@dataclass(frozen=True)
class MaskReport:
    """Problems of masks, and the coverage of their classes by split; empty if the masks cannot be used."""

    problems: list[str]
    classes: tuple[str, ...] = ()
    coverage: dict[str, MaskCoverage] = field(default_factory=dict)


@dataclass(frozen=True)
class DataReport:
    """Everything that `vitreous data check` found. `problems` counts what must be fixed before training."""

    name: str
    note: str = ""
    counts: dict[str, dict[str, int]] = field(default_factory=dict)  # images by split and class
    label_problems: list[str] = field(default_factory=list)
    unreadable: list[UnreadableSample] = field(default_factory=list)
    leaks: list[list[Sample]] = field(default_factory=list)  # the same image in several splits
    conflicts: list[list[Sample]] = field(default_factory=list)  # the same image in several classes
    duplicates: list[list[Sample]] = field(default_factory=list)  # the same image repeated in one split and class
    odd: dict[str, list[Sample]] = field(default_factory=dict)
    sizes: dict[str, Size] = field(default_factory=dict)  # the smallest, median and largest by area
    damaged: list[str] = field(default_factory=list)  # files that have lost something, such as truncated shards
    masks: MaskReport | None = None
    contact_sheet: str | None = None

    @property
    def problems(self) -> int:
        """Number of problems; an image that is both a leak and in two classes counts once."""
        masks = len(self.masks.problems) if self.masks is not None else 0
        return len(self.label_problems) + len(self.unreadable) + len(self._copies()) + len(self.damaged) + masks

    @property
    def balance(self) -> tuple[str, int, str, int] | None:
        """The largest and the smallest class of the first split, with their numbers of images."""
        counts = next(iter(self.counts.values()), {})
        if not counts:
            return None
        large, small = max(counts, key=lambda name: counts[name]), min(counts, key=lambda name: counts[name])
        return large, counts[large], small, counts[small]

    def _copies(self) -> list[tuple[str, list[Sample]]]:
        """Every group of copies that is a problem, once, with its title."""
        leaks = [
            ("leak" if len({one.label for one in group}) == 1 else "leak, two labels", group) for group in self.leaks
        ]
        in_one_split = [group for group in self.conflicts if len({one.split for one in group}) == 1]
        return leaks + [("two labels", group) for group in in_one_split]

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON types."""
        result = asdict(self) | {"problems": self.problems}
        if (masks := result.pop("masks")) is not None:
            result |= {"mask_problems": masks["problems"], "classes": masks["classes"], "cover": masks["coverage"]}
        return result

    def __str__(self) -> str:
        console = SafeConsole(file=io.StringIO(), width=120, no_color=True)
        console.print(self)
        text: str = console.file.getvalue()  # type: ignore[attr-defined]
        return text.rstrip()

    def __rich_console__(self, console: Console, options: object) -> Iterator[RenderableType]:
        yield f"[bold]{escape(self.name)}[/bold]  {escape(self.note)}"
        if self.masks is None:
            yield self._class_table()
        elif self.masks.coverage:
            yield _mask_table(self.masks)
        yield from self._remarks()
        for problem in self.label_problems:
            yield _problem("labels", problem)
        yield from _shortened([_problem("damaged", line) for line in self.damaged])
        yield from _shortened([_problem("unreadable", f"{self._shown(one)}: {one.reason}") for one in self.unreadable])
        yield from _shortened([_problem(title, " = ".join(map(self._shown, group))) for title, group in self._copies()])
        for problem in self.masks.problems if self.masks is not None else []:
            yield _problem("masks", problem)
        if self.contact_sheet is not None:
            yield f"contact sheet: {escape(self.contact_sheet)}"
        if self.problems:
            yield f"[bold red]{plural(self.problems, 'problem')}[/bold red]"
        else:
            yield "[bold green]no problems[/bold green]"

    def _shown(self, sample: Sample) -> str:
        """A name with its class and split, without those that are the same for all."""
        about = [one_line(sample.label)] if sample.label else []
        about += [f"in {sample.split}"] if len(self.counts) > 1 else []
        return one_line(sample.name) + (f" ({', '.join(about)})" if about else "")

    def _class_table(self) -> Table:
        """Images by class and split; of many classes, the largest and the smallest."""
        splits = list(self.counts)
        table = Table("class", *splits, box=None)
        for column in table.columns[1:]:
            column.justify = "right"
        classes = list(dict.fromkeys(name for counts in self.counts.values() for name in counts))
        shown = classes
        if len(classes) > 2 * SHOWN:
            first = self.counts[splits[0]]
            ordered = sorted(classes, key=lambda name: -first.get(name, 0))
            shown = [*ordered[: SHOWN // 2], "...", *ordered[-SHOWN // 2 :]]
        for name in shown:
            cells = ["" if name == "..." else f"{self.counts[split].get(name, 0):,}" for split in splits]
            table.add_row(escape(one_line(name)), *cells)
        totals = [f"{sum(self.counts[split].values()):,}" for split in splits]
        table.add_row(f"[bold]{len(classes):,} classes[/bold]", *totals)
        return table

    def _remarks(self) -> Iterator[str]:
        """Facts to know that do not prevent training."""
        if self.balance is not None:
            large, most, small, least = self.balance
            if most > IMBALANCE * max(least, 1):
                yield escape(f"imbalance: {large!r} has {most:,} images, {small!r} has {least:,}")
        if self.sizes:
            sizes = ", ".join(f"{name} {height} x {width}" for name, (height, width) in self.sizes.items())
            yield f"sizes (height x width): {sizes}"
        for kind, samples in self.odd.items():
            yield escape(f"{kind}: {len(samples):,}, such as {self._shown(samples[0])}")
        if self.duplicates:
            extra = sum(len(group) - 1 for group in self.duplicates)
            first = " = ".join(map(self._shown, self.duplicates[0]))
            yield escape(f"duplicates within a split: {plural(extra, 'image')}, such as {first}")


def unlearnable(classes: tuple[str, ...], coverage: dict[str, MaskCoverage]) -> list[str]:
    """A problem for every split with classes that train has no pixel of."""
    problems = []
    for split, one in coverage.items():
        lacking = [i for i, n in enumerate(one.images) if n and "train" in coverage and not coverage["train"].images[i]]
        if lacking:
            shown = ", ".join(f"{classes[i]!r} ({one.fractions[i]:.1%} of its pixels)" for i in lacking[:5])
            more = f" and {len(lacking) - 5} more" if len(lacking) > 5 else ""
            problems.append(
                f"{split} has {shown}{more}, which no mask of train has: add some to train, or exclude it with --ignore"
            )
    return problems


def _mask_table(masks: MaskReport) -> Table:
    table = Table("class of pixels", *(f"{split}: images, fraction" for split in masks.coverage), box=None)
    for index, name in enumerate(masks.classes):
        cells = [f"{one.images[index]:,}, {one.fractions[index]:.1%}" for one in masks.coverage.values()]
        table.add_row(escape(name), *cells)
    table.add_row("ignored", *(f"{one.ignored:.1%}" for one in masks.coverage.values()))
    return table


def _problem(title: str, text: str) -> str:
    return f"[red]{title}[/red]: {escape(text)}"


def _shortened(lines: Sequence[str]) -> Iterator[str]:
    yield from lines[:SHOWN]
    if len(lines) > SHOWN:
        yield f"  ... and {len(lines) - SHOWN:,} more"
