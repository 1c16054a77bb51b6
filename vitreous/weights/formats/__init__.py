"""Checkpoint formats of other libraries.

`base.py` defines the interface of a format and the config builder, `mapping.py` converts tensors with tables in both
directions, `write_checks.py` finds model parts that a library does not support, and `detect_format.py` lists formats
and detects the format of a checkpoint. Each library has its own file or folder.
"""

from vitreous.weights.formats.base import AssumptionWarning, ConfigBuilder, Format, StateDict
from vitreous.weights.formats.detect_format import FORMATS, canonical_name, format_for, identify

__all__ = [
    "FORMATS",
    "AssumptionWarning",
    "ConfigBuilder",
    "Format",
    "StateDict",
    "canonical_name",
    "format_for",
    "identify",
]
