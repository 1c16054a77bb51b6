"""How the command line says no."""

import sys
from typing import NoReturn

from vitreous.model.checks import BadValue


def refuse(error: Exception) -> NoReturn:
    """One clear line, and 2 for an argument that cannot be, 1 for data that is not right.

    What a stranger's file is called, or calls its tensors, must not reach the terminal as orders.
    """
    text = "".join(char if char.isprintable() or char in "\n\t" else ascii(char)[1:-1] for char in str(error))
    print(f"vitreous: {text}", file=sys.stderr)
    sys.exit(2 if isinstance(error, BadValue) else 1)
