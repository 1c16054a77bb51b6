"""Command line: one file per verb, and `main.py`, which parses arguments and prints errors."""

from typing import Annotated

from tyro.conf import arg

ImageSize = Annotated[tuple[int, ...], arg(metavar="PIXELS | HEIGHT WIDTH")]
