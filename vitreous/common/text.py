"""Makes untrusted text, such as file and class names, safe for terminals, logs and reports."""

import json
import re
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import IO, Any, cast

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

JOINERS = "\u200c\u200d"  # invisible, but part of words in some scripts


def printable(text: str) -> str:
    """Escape control and invisible characters except newlines and tabs."""
    return text if text.isprintable() else _escaped(text, JOINERS + "\n\t")


def one_line(text: str) -> str:
    """Escape control and invisible characters, including newlines and tabs."""
    return text if text.isprintable() else _escaped(text, JOINERS)


def clean(text: str) -> str:
    """Replace invalid Unicode, such as undecodable bytes in file names, with question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


def single_spaced(text: str, length: int | None = None) -> str:
    r"""Replace runs of control characters and whitespace with one space, and truncate to `length`.

    >>> single_spaced("a\x1b[2J\n  b"), single_spaced("a long name", 8)
    ('a [2J b', 'a lon...')
    """
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line if length is None or len(line) <= length else line[: length - 3] + "..."


def _escaped(text: str, keep: str) -> str:
    return "".join(char if char.isprintable() or char in keep else ascii(char)[1:-1] for char in text)


def json_text(value: Any) -> str:
    """Encode a value as one line of JSON. Non-ASCII text is not escaped, except for invisible characters."""
    text = json.dumps(value, ensure_ascii=False)
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in JOINERS else json.dumps(char)[1:-1] for char in text)


class SafeConsole(Console):
    """Rich console that escapes control characters in texts, but not in its own style codes."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


def plural(count: int, noun: str) -> str:
    """Format a count with its noun.

    >>> plural(1, "image"), plural(2000, "image")
    ('1 image', '2,000 images')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def listed(names: Collection[str], limit: int = 5) -> str:
    """Return the first few names in quotes, followed by the number of remaining names.

    >>> listed(["a", "b", "c"], limit=2)
    "'a', 'b' and 1 more"
    """
    return first_few([repr(name) for name in names], limit)


def first_few(texts: Sequence[str], limit: int = 5, separator: str = ", ") -> str:
    """Join the first few texts, and append the number of remaining texts."""
    return separator.join(texts[:limit]) + (f" and {len(texts) - limit:,} more" if len(texts) > limit else "")


# ---- The console -----------------------------------------------------------------------------------------------------


UNBOUNDED = 1 << 16  # number of columns; more than the length of any path


def console(markup: bool = False, soft_wrap: bool = False) -> SafeConsole:
    """Return a console for stdout that escapes control characters. If stdout is piped, lines are not wrapped."""
    if sys.stdout.isatty():
        return SafeConsole(markup=markup, emoji=False, highlight=False, soft_wrap=soft_wrap)
    trimmed = cast(IO[str], _Trimmed())
    return SafeConsole(file=trimmed, width=UNBOUNDED, markup=markup, emoji=False, highlight=False, soft_wrap=soft_wrap)


class _Trimmed:
    """Wrapper of stdout that removes trailing spaces, such as those of padded table rows."""

    @property
    def encoding(self) -> str:
        return sys.stdout.encoding

    def write(self, text: str) -> int:
        return sys.stdout.write(re.sub(r" +$", "", text, flags=re.MULTILINE))

    def flush(self) -> None:
        sys.stdout.flush()

    def isatty(self) -> bool:
        return False


def duration(seconds: float) -> str:
    """Format a duration in its two largest units."""
    if seconds < 9.95:
        return f"{max(seconds, 0):.1f} s"
    units, rest = [("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)], round(seconds)
    largest = next(i for i, (_, length) in enumerate(units) if rest >= length)
    words = []
    for unit, length in units[largest : largest + 2]:
        count, rest = divmod(rest, length)
        if count:
            words.append(f"{count} {unit}")
    return " ".join(words)


def roughly(seconds: float) -> str:
    """Format an estimated duration as a rounded value in one unit."""
    if seconds < 57:
        return f"{round(seconds, -1 if seconds >= 20 else 0) or 1:.0f} s"
    if seconds < 90 * 60:
        return f"{max(seconds / 60, 1):.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 36 * 3600 else f"{seconds / 86_400:.1f} d"
