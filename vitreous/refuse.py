"""How the command line says no."""

import os
import sys
from typing import NoReturn

from vitreous.model.checks import BadValue


def refuse(error: Exception) -> NoReturn:
    """One clear line, and 2 for an argument that cannot be, 1 for data that is not right.

    What a stranger's file is called, or calls its tensors, must not reach the terminal as orders. Where nobody reads
    on, as in `vitreous info | head -3`, nothing is wrong and nothing is said.
    """
    if isinstance(error, BrokenPipeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it closes it
        sys.exit(1)
    text = "".join(char if char.isprintable() or char in "\n\t" else ascii(char)[1:-1] for char in str(error))
    print(f"vitreous: {text}", file=sys.stderr)
    sys.exit(2 if isinstance(error, BadValue) else 1)
