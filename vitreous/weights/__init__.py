"""Loads, saves, describes and converts checkpoints in any supported format.

`load.py` opens Vitreous folders (`native.py`) and checkpoints in other formats (`formats/`). `io/` safely reads tensors
from untrusted files, `hub.py` downloads from and uploads to the Hugging Face Hub, `catalog.py` lists pretrained weights
by name, `card.py` writes model cards, and `convert.py` converts checkpoints and compares the result with the source
(`parity.py`) and with other libraries (`peers.py`). `create.py` builds models. Names are imported on first use, because
the catalog does not need torch; the functions `create`, `load` and `convert` are exported as `vitreous.create`,
`vitreous.load` and `vitreous.convert`.
"""

from typing import TYPE_CHECKING

from vitreous.common.lazy_names import lazy_names

if TYPE_CHECKING:
    from vitreous.weights.catalog import CATALOG as CATALOG
    from vitreous.weights.catalog import HUB_PREFIX as HUB_PREFIX
    from vitreous.weights.catalog import Pretrained as Pretrained
    from vitreous.weights.convert import Conversion as Conversion
    from vitreous.weights.formats import AssumptionWarning as AssumptionWarning
    from vitreous.weights.io import BadCheckpoint as BadCheckpoint
    from vitreous.weights.io import UnsupportedByFormat as UnsupportedByFormat
    from vitreous.weights.io import copy_to_memory as copy_to_memory
    from vitreous.weights.load import Checkpoint as Checkpoint
    from vitreous.weights.load import describe as describe
    from vitreous.weights.load import is_hub as is_hub
    from vitreous.weights.load import load_encoder as load_encoder
    from vitreous.weights.load import open_checkpoint as open_checkpoint
    from vitreous.weights.load import save as save
    from vitreous.weights.native import Description as Description
    from vitreous.weights.native import check_not_swapped as check_not_swapped
    from vitreous.weights.native import load_folder as load_folder
    from vitreous.weights.native import provenance_of as provenance_of
    from vitreous.weights.parity import Difference as Difference
    from vitreous.weights.parity import compare as compare

_HOMES = {
    "AssumptionWarning": "vitreous.weights.formats",
    "BadCheckpoint": "vitreous.weights.io",
    "HUB_PREFIX": "vitreous.weights.catalog",
    "CATALOG": "vitreous.weights.catalog",
    "check_not_swapped": "vitreous.weights.native",
    "Checkpoint": "vitreous.weights.load",
    "compare": "vitreous.weights.parity",
    "Conversion": "vitreous.weights.convert",
    "copy_to_memory": "vitreous.weights.io",
    "describe": "vitreous.weights.load",
    "Description": "vitreous.weights.native",
    "Difference": "vitreous.weights.parity",
    "is_hub": "vitreous.weights.load",
    "load_encoder": "vitreous.weights.load",
    "load_folder": "vitreous.weights.native",
    "open_checkpoint": "vitreous.weights.load",
    "Pretrained": "vitreous.weights.catalog",
    "provenance_of": "vitreous.weights.native",
    "save": "vitreous.weights.load",
    "UnsupportedByFormat": "vitreous.weights.io",
}
__all__ = sorted(_HOMES)
if not TYPE_CHECKING:  # hidden from mypy, which would otherwise accept any name
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
