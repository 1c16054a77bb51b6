"""Small PNG files that decode to many pixels."""

import struct
import zlib

SIGNATURE = b"\x89PNG\r\n\x1a\n"


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def bomb(side: int, *more: bytes) -> bytes:
    """A valid PNG of side x side white pixels, compressed a thousand times."""
    packer = zlib.compressobj(9)
    row = b"\0" + b"\xff" * (side // 8)
    pixels = b"".join(packer.compress(row * 100) for _ in range(side // 100)) + packer.flush()
    return SIGNATURE + b"".join(more) + sides(side) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def sides(side: int) -> bytes:
    return chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0))
