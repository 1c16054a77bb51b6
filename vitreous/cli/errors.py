"""Errors and warnings on the command line: one clear line on stderr."""

import os
import sys
import warnings
from typing import NoReturn, TextIO

from vitreous.common.checks import BadValue
from vitreous.common.text import printable


def refuse(error: Exception) -> NoReturn:
    """One clear line, and 2 for an argument that cannot be, 1 for data that is not right.

    What a stranger's file is called, or calls its tensors, must not reach the terminal as orders. Where nobody reads
    on, as in `vitreous info | head -3`, nothing is wrong and nothing is said.
    """
    if isinstance(error, BrokenPipeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it closes it
        sys.exit(1)
    print(f"vitreous: {printable(str(error))}", file=sys.stderr)
    sys.exit(2 if isinstance(error, BadValue) else 1)


def print_own_warnings() -> None:
    """Print warnings of ours as one line on stderr, without the place in the code; others stay as they are.

    Of the processes that torchrun starts, only the first prints them.
    """
    usual = warnings.showwarning

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if not category.__module__.startswith("vitreous."):
            usual(message, category, filename, lineno, file, line)
        elif os.environ.get("RANK", "0") == "0":
            print(f"vitreous: warning: {printable(str(message))}", file=sys.stderr)

    warnings.showwarning = show
