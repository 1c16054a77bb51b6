import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from images import encoded, smooth
from vitreous.data.image import UnreadableImage
from vitreous.data.masks.files import ColouredMask, colours_in, ids_in, read_header, read_ids


def png(ids: np.ndarray, bits: int, palette: bool = False) -> bytes:
    """Build a PNG of the given bit depth; Pillow cannot write 2-bit and 4-bit grey."""
    if bits == 16:
        rows = [row.astype(">u2").tobytes() for row in ids]
    else:
        each = 8 // bits
        rows = []
        for row in ids:
            full = np.concatenate([row, np.zeros(-len(row) % each, row.dtype)]).reshape(-1, each)
            shifts = np.arange(8 - bits, -1, -bits)
            rows.append((full << shifts).sum(1).astype(np.uint8).tobytes())
    data = zlib.compress(b"".join(b"\0" + row for row in rows))
    header = struct.pack(">IIBBBBB", ids.shape[1], ids.shape[0], bits, 3 if palette else 0, 0, 0, 0)
    colours = np.random.default_rng(0).integers(0, 256, 3 * 2 ** min(bits, 8), dtype=np.uint8).tobytes()
    chunks = [(b"IHDR", header), *([(b"PLTE", colours)] if palette else []), (b"IDAT", data), (b"IEND", b"")]
    body = b"".join(struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in chunks)
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.parametrize("palette", [False, True])
@pytest.mark.parametrize("bits", [1, 2, 4, 8, 16])
def test_ids_of_any_bit_depth_are_read_unchanged(bits: int, palette: bool) -> None:
    if bits == 16 and palette:
        pytest.skip("a palette has 8 bits at most")
    ids = np.random.default_rng(1).integers(0, 2**bits, (7, 13))
    read = read_ids(png(ids, bits, palette))
    assert np.array_equal(read, ids)
    assert read.dtype == (np.uint16 if bits == 16 else np.uint8)
    assert ids_in(read) == sorted(set(ids.ravel().tolist()))
    assert read_header(png(ids, bits, palette)[:26]).size == (7, 13)


def test_masks_written_by_pillow_are_read() -> None:
    ids = np.random.default_rng(1).integers(0, 6, (9, 8), dtype=np.uint8)
    indexed = Image.fromarray(ids)
    indexed.putpalette(list(range(30, 48)))
    clear = encoded(indexed, transparency=0)
    for data in (encoded(ids), encoded(indexed), clear, encoded(indexed, optimize=True), encoded(ids, bits=8)):
        assert np.array_equal(read_ids(data), ids)
    assert np.array_equal(read_ids(encoded(ids.astype(np.uint16) * 1000)), ids.astype(int) * 1000)
    assert np.array_equal(read_ids(encoded(Image.fromarray(ids > 2))), ids > 2)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "LA"])
def test_rgb_masks_are_rejected(mode: str) -> None:
    image = Image.new("RGB", (6, 4), (0, 0, 0))
    image.paste((128, 0, 0), (0, 0, 2, 4))
    data = encoded(image.convert(mode))
    with pytest.raises(ColouredMask, match=r"contains colours .* instead of class ids"):
        read_ids(data)
    colours = colours_in(data)
    assert colours[0] == (0, 0, 0)
    assert len(colours) == 2
    if mode != "LA":
        assert colours[1] == (128, 0, 0)
    assert len(colours_in(encoded(smooth(20, 20)), most=3)) == 3


def test_grey_mask_saved_as_rgb_is_read() -> None:
    ids = np.random.default_rng(1).integers(0, 256, (9, 8), dtype=np.uint8)
    rgb = np.stack([ids] * 3, axis=-1)
    opaque = np.concatenate([rgb, np.full((9, 8, 1), 255, np.uint8)], axis=-1)
    for pixels in (rgb, opaque):
        read = read_ids(encoded(pixels))
        assert np.array_equal(read, ids)
        assert read.dtype == np.uint8
    tinted, clear = rgb.copy(), opaque.copy()
    tinted[4, 4, 2] ^= 1
    clear[4, 4, 3] = 0
    for pixels in (tinted, clear):
        with pytest.raises(ColouredMask, match="contains colours"):
            read_ids(encoded(pixels))


BROKEN = {
    "empty": (b"", "the file is empty"),
    "text": (b"<html>404</html>", "not a PNG file"),
    "JPEG": (encoded(smooth(8, 8)[..., 0], "JPEG"), "not a PNG file"),
    "short": (encoded(smooth(8, 8)[..., 0])[:20], "not a PNG file"),
    "cut off": (encoded(smooth(60, 60)[..., 0])[:900], "cannot be decoded"),
    "huge": (png(np.zeros((1, 1), int), 8).replace(struct.pack(">II", 1, 1), b"\0\1\0\0" * 2), "exceed the limit"),
    "no pixels": (png(np.zeros((1, 1), int), 8).replace(struct.pack(">II", 1, 1), bytes(8)), "header is invalid"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_error_explains_the_invalid_file(name: str) -> None:
    data, reason = BROKEN[name]
    with pytest.raises(UnreadableImage, match=reason):
        read_ids(data)
