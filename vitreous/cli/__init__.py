"""Command line: one file per command; `main.py` parses arguments and prints errors."""

from typing import Annotated

from tyro.conf import arg

ImageSize = Annotated[tuple[int, ...], arg(metavar="PIXELS | HEIGHT WIDTH")]
