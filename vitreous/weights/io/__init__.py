"""Readers and writers for tensor files, safe for untrusted input.

`containers.py` detects the file type from the content (safetensors, npz, or a torch or Paddle pickle), opens sharded
files, and unwraps training checkpoints. `safetensors_file.py`, `npz.py` and `pickle/` read one file type each,
`zip_directory.py` checks zip archives, and `errors.py` defines the errors, which name the file.
"""

from vitreous.weights.io.containers import read_file, unwrapped, write_file
from vitreous.weights.io.errors import BadCheckpoint, InvalidFile, UnsupportedByFormat
from vitreous.weights.io.safetensors_file import Mapped, copy_to_memory, read_tensors, write_tensors

__all__ = [
    "BadCheckpoint",
    "InvalidFile",
    "Mapped",
    "UnsupportedByFormat",
    "copy_to_memory",
    "read_file",
    "read_tensors",
    "unwrapped",
    "write_file",
    "write_tensors",
]
