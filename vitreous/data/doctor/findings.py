"""What a check of a data set found, to be printed or read by a program."""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table

from vitreous.common.checks import Size
from vitreous.common.text import SafeConsole, one_line
from vitreous.data.split import plural

SHOWN = 10  # of a long list
IMBALANCE = 10  # times as many pictures in the largest class as in the smallest


@dataclass(frozen=True)
class Entry:
    """A picture, by the part and class it is in and what it is called."""

    part: str
    label: str
    name: str

    def __str__(self) -> str:
        return f"{one_line(self.name)} ({one_line(self.label)}, in {self.part})"


@dataclass(frozen=True)
class Report:
    """Everything `vitreous data check` says. `problems` counts what should be mended before training."""

    name: str
    note: str
    counts: dict[str, dict[str, int]]  # part, class: pictures
    label_problems: list[str]
    unreadable: list[tuple[Entry, str]]  # with the reason
    leaks: list[list[Entry]]  # the same picture in more than one part
    conflicts: list[list[Entry]]  # the same picture in more than one class
    duplicates: list[list[Entry]]  # the same picture more than once in one part and class
    odd: dict[str, list[Entry]]
    sizes: tuple[Size, Size, Size] | None  # smallest, median and largest by area
    damaged: tuple[str, ...] = ()  # files that have lost something, such as shards that were cut short

    @property
    def problems(self) -> int:
        twins = {id(group) for group in (*self.leaks, *self.conflicts)}
        return len(self.label_problems) + len(self.unreadable) + len(twins) + len(self.damaged)

    @property
    def balance(self) -> tuple[str, int, str, int] | None:
        """The largest and the smallest class of the first part, and their numbers of pictures."""
        counts = next(iter(self.counts.values()), {})
        if not counts:
            return None
        large, small = max(counts, key=lambda name: counts[name]), min(counts, key=lambda name: counts[name])
        return large, counts[large], small, counts[small]

    def to_dict(self) -> dict[str, Any]:
        """For `json.dumps`."""

        def group(entries: Sequence[Entry]) -> list[dict[str, str]]:
            return [vars(entry).copy() for entry in entries]

        return {
            "name": self.name,
            "note": self.note,
            "problems": self.problems,
            "counts": self.counts,
            "label_problems": self.label_problems,
            "damaged": list(self.damaged),
            "unreadable": [{**vars(entry), "reason": reason} for entry, reason in self.unreadable],
            "leaks": [group(entries) for entries in self.leaks],
            "conflicts": [group(entries) for entries in self.conflicts],
            "duplicates": [group(entries) for entries in self.duplicates],
            "odd": {kind: group(entries) for kind, entries in self.odd.items()},
            "sizes": dict(zip(("smallest", "median", "largest"), map(list, self.sizes), strict=True))
            if self.sizes
            else None,
        }

    def __str__(self) -> str:
        console = SafeConsole(file=io.StringIO(), width=120, no_color=True)
        console.print(self)
        text: str = console.file.getvalue()  # type: ignore[attr-defined]
        return text.rstrip()

    def __rich_console__(self, console: Console, options: object) -> Iterator[RenderableType]:
        yield f"[bold]{escape(self.name)}[/bold]  {escape(self.note)}"
        yield self._table()
        yield from self.remarks()
        for problem in self.label_problems:
            yield _bad("labels", problem)
        yield from self.findings()
        if self.problems:
            yield f"[bold red]{plural(self.problems, 'problem')}[/bold red]"
        else:
            yield "[bold green]no problems[/bold green]"

    def findings(self) -> Iterator[str]:
        """Lines on damaged files and single pictures."""
        for line in self.damaged[:SHOWN]:
            yield _bad("damaged", line)
        yield from _rest(self.damaged)
        for entry, reason in self.unreadable[:SHOWN]:
            yield _bad("unreadable", f"{self._told(entry)}: {reason}")
        yield from _rest(self.unreadable)
        for title, groups in (("leak", self.leaks), ("two labels", self.conflicts)):
            for group in groups[:SHOWN]:
                yield _bad(title, " = ".join(map(self._told, group)))
            yield from _rest(groups)

    def _told(self, entry: Entry) -> str:
        """Where all pictures are in one part, its name would say nothing."""
        return str(entry) if len(self.counts) > 1 else f"{one_line(entry.name)} ({one_line(entry.label)})"

    def _table(self) -> Table:
        """Pictures by class and part; of many classes, the largest and the smallest."""
        parts = list(self.counts)
        table = Table("class", *parts, box=None)
        for column in table.columns[1:]:
            column.justify = "right"
        classes = list(dict.fromkeys(name for counts in self.counts.values() for name in counts))
        shown = classes
        if len(classes) > 2 * SHOWN:
            first = self.counts[parts[0]]
            ordered = sorted(classes, key=lambda name: -first.get(name, 0))
            shown = [*ordered[: SHOWN // 2], "...", *ordered[-SHOWN // 2 :]]
        for name in shown:
            cells = ["" if name == "..." else f"{self.counts[part].get(name, 0):,}" for part in parts]
            table.add_row(escape(one_line(name)), *cells)
        totals = [f"{sum(self.counts[part].values()):,}" for part in parts]
        table.add_row(f"[bold]{len(classes):,} classes[/bold]", *totals)
        return table

    def remarks(self) -> Iterator[str]:
        """Things to know, which training copes with."""
        if self.balance is not None:
            large, most, small, least = self.balance
            if most > IMBALANCE * max(least, 1):
                yield escape(f"imbalance: {large!r} has {most:,} pictures, {small!r} has {least:,}")
        if self.sizes is not None:
            smallest, median, largest = (f"{height} x {width}" for height, width in self.sizes)
            yield f"sizes (height x width): smallest {smallest}, median {median}, largest {largest}"
        for kind, entries in self.odd.items():
            yield escape(f"{kind}: {len(entries):,}, such as {self._told(entries[0])}")
        if self.duplicates:
            extra = sum(len(group) - 1 for group in self.duplicates)
            first = " = ".join(map(self._told, self.duplicates[0]))
            yield escape(f"duplicates within a part: {plural(extra, 'picture')}, such as {first}")


def _bad(title: str, text: str) -> str:
    return f"[red]{title}[/red]: {escape(text)}"


def _rest(items: Sequence[object]) -> Iterator[str]:
    if len(items) > SHOWN:
        yield f"  ... and {len(items) - SHOWN:,} more"
