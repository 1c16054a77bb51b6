"""What a file is, told by how it begins: a name may be wrong, and whoever saves a web page as `.pth` wants to know."""

import os
from pathlib import Path

from vitreous.weights.io.errors import Refused, naming
from vitreous.weights.io.zip_directory import opened_zip

ZIP = b"PK\3\4"
PICKLE = b"\x80"  # of protocol 2 or later
TAR, TAR_AT = b"ustar", 257
LONGEST = 512

# How other files begin that have been given the names of weights.
STRANGERS = {
    b"version https://git-lfs": "only the pointer of Git LFS, not the file itself: get it with `git lfs pull`",
    b"<!doctype": "a web page, not weights: download the file that the page is about",
    b"<html": "a web page, not weights: download the file that the page is about",
    b"<?xml": "XML, probably what a server said instead of sending weights: download the file again",
    b"{": "JSON, not weights",
    b"\x1f\x8b": "compressed by gzip: unpack it first",
    b"\x89hdf": "HDF5, which is not read: convert it with the system that wrote it",
}


def content_of(file: Path) -> str | None:
    """The suffix that a file should have, or None where its beginning does not tell."""
    with naming(file), open(file, "rb") as stream:
        start, size = stream.read(LONGEST), os.fstat(stream.fileno()).st_size
        if start[8:9] == b"{" and 8 + int.from_bytes(start[:8], "little") <= size:
            return ".safetensors"
        if start.startswith(ZIP):
            with opened_zip(stream) as (_, members):
                return ".npz" if any(name.endswith(".npy") for name in members) else ".pth"
        check_start(start)
        return ".pth" if start.startswith(PICKLE) else None


def check_start(start: bytes) -> None:
    """Refuse what is certainly no file of weights, by the name of what it is."""
    text = start.lstrip(b"\xef\xbb\xbf \r\n\t").lower()
    for sign, kind in STRANGERS.items():
        if text.startswith(sign):
            raise Refused(f"is {kind}")
    if start[TAR_AT:].startswith(TAR):
        raise Refused("is a tar archive: unpack it first")
