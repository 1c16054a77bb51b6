"""The console that tables and lines are printed to, as wide as the terminal, or unbounded in a pipe."""

import re
import sys
from typing import IO, cast

from vitreous.common.text import SafeConsole

UNBOUNDED = 1 << 16  # columns, more than any path


def console(markup: bool = False, soft_wrap: bool = False) -> SafeConsole:
    """Return a console on standard output that escapes control characters; names are not markup.

    In a pipe or a file no line is wrapped or cut, so that `grep` finds whole paths and rows.
    """
    if sys.stdout.isatty():
        return SafeConsole(markup=markup, emoji=False, highlight=False, soft_wrap=soft_wrap)
    trimmed = cast(IO[str], _Trimmed())
    return SafeConsole(file=trimmed, width=UNBOUNDED, markup=markup, emoji=False, highlight=False, soft_wrap=soft_wrap)


class _Trimmed:
    """Standard output without the trailing blanks that pad the rows of a table."""

    @property
    def encoding(self) -> str:
        return sys.stdout.encoding

    def write(self, text: str) -> int:
        return sys.stdout.write(re.sub(r" +$", "", text, flags=re.MULTILINE))

    def flush(self) -> None:
        sys.stdout.flush()

    def isatty(self) -> bool:
        return False
