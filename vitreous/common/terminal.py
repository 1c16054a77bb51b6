"""Where tables and lines are printed to: as wide as the terminal, or as wide as they are where nobody looks on."""

import re
import sys
from typing import IO, cast

from vitreous.common.text import SafeConsole

ENDLESS = 1 << 16  # columns: no path is as long


def console(markup: bool = False, soft_wrap: bool = False) -> SafeConsole:
    """The standard output. Names of files and classes are not markup, and control characters in them are escaped.

    In a pipe or a file no line is wrapped or cut, so that `grep` finds a path whole and a table keeps a row on a line.
    """
    if sys.stdout.isatty():
        return SafeConsole(markup=markup, emoji=False, highlight=False, soft_wrap=soft_wrap)
    trimmed = cast(IO[str], _Trimmed())
    return SafeConsole(file=trimmed, width=ENDLESS, markup=markup, emoji=False, highlight=False, soft_wrap=soft_wrap)


class _Trimmed:
    """The standard output without the blanks that fill a table's rows up to its longest, which may be very long."""

    @property
    def encoding(self) -> str:
        return sys.stdout.encoding

    def write(self, text: str) -> int:
        return sys.stdout.write(re.sub(r" +$", "", text, flags=re.MULTILINE))

    def flush(self) -> None:
        sys.stdout.flush()

    def isatty(self) -> bool:
        return False
