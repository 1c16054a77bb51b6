"""The web page that shows how a model processes an image: static files, and the results that they show.

`vitreous serve` serves the files in static/ and computes results on request. `vitreous export --to web` copies the
files and adds a model that runs in the browser. static/source.js selects one of the two.
"""

from pathlib import Path

STATIC = Path(__file__).parent / "static"

__all__ = ["STATIC"]
