"""Decoding one image takes a bounded amount of memory, which its header tells beforehand."""

import os
import struct
import subprocess
import sys
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pictures import encoded
from vitreous.data.image import errors as unreadable
from vitreous.data.image import modes
from vitreous.data.image.decode import UnreadableImage, decode, fit, size_of
from vitreous.model.options import Preprocessing

MEASURE = """
import re, sys
import numpy as np
from pathlib import Path
from vitreous.data.image.decode import fit
from vitreous.model.options import Preprocessing
fit(np.zeros((9, 9, 3), np.uint8), (8, 8), Preprocessing())
data = Path(sys.argv[1]).read_bytes()
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
Path("/proc/self/clear_refs").write_text("5")
before = peak()
fit(data, (8, 8), Preprocessing())
print(peak() - before)
"""


def blank_png(height: int, width: int, bits: int, kind: int, bytes_each: int) -> bytes:
    """A PNG of zeros, small as a file however large it is."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, 0)
    pixels = zlib.compress(b"\0" * (1 + width * bytes_each) * height, 1)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="peak memory is read from /proc")
@pytest.mark.parametrize("kind", ["16-bit grey PNG", "RGBA PNG", "CMYK TIFF", "float TIFF", "WebP"])
def test_decoding_takes_no_more_memory_than_its_header_tells(kind: str, tmp_path: Path) -> None:
    size = (2500, 4000)
    match kind:
        case "16-bit grey PNG":
            data = blank_png(*size, 16, 0, 2)
        case "RGBA PNG":
            data = blank_png(*size, 8, 6, 4)
        case "WebP":
            data = encoded(Image.new("RGB", size[::-1]), "WEBP")
        case _:
            mode = kind.split()[0].replace("float", "F")
            data = encoded(Image.new(mode, size[::-1]), "TIFF", compression="tiff_lzw")
    (tmp_path / "image").write_bytes(data)
    command = [sys.executable, "-c", MEASURE, str(tmp_path / "image")]
    taken = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) * 1024
    assert taken < 1.2 * modes.bytes_to_decode(modes.open_image(data)) + (30 << 20)


@pytest.mark.parametrize("kind", [(16, 2, 6), (8, 6, 4)], ids=["16-bit RGB", "RGBA"])
def test_an_image_that_needs_too_much_memory_is_rejected_with_size_and_limit(kind: tuple[int, int, int]) -> None:
    bits, colour, _ = kind
    data = blank_png(0, 0, bits, colour, 0)  # a header is enough
    header = struct.pack(">IIBBBBB", 13_000, 13_000, bits, colour, 0, 0, 0)
    data = data[:16] + header + struct.pack(">I", zlib.crc32(b"IHDR" + header)) + data[33:]
    for read in (size_of, decode, lambda data: fit(data, (8, 8), Preprocessing())):
        with pytest.raises(UnreadableImage, match=r"13000 x 13000 pixels need 1,128 MiB .* limit of 1,024 MiB"):
            read(data)


@pytest.mark.parametrize(("together", "expected"), [(0.5, 1), (1, 1), (2, 2), (3.5, 3), (100, 6)])
def test_images_are_decoded_at_the_same_time_within_the_limit(
    together: float, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six threads: as many decode at the same time as fit, and one in any case."""
    data = encoded(np.zeros((50, 50, 3), np.uint8))
    needed = modes.bytes_to_decode(modes.open_image(data))
    most, running, change = 0, 0, threading.Condition()
    real = modes.pixels_of

    def counted(image: Image.Image) -> np.ndarray:
        nonlocal most, running
        with change:
            running += 1
            most = max(most, running)
            change.notify_all()
            change.wait_for(lambda: most >= expected, timeout=10)  # until all that may have begun
            change.wait_for(lambda: most > expected, timeout=0.05)  # time to go beyond
        pixels = real(image)
        with change:
            running -= 1
        return pixels

    monkeypatch.setattr(modes, "pixels_of", counted)
    monkeypatch.setattr(unreadable, "check_memory", lambda *_: None)
    monkeypatch.setattr("vitreous.data.image.decode.check_memory", lambda *_: None)
    monkeypatch.setattr(unreadable, "MAX_BYTES", int(together * needed))
    monkeypatch.setattr(unreadable, "LARGE_BYTES", 0)
    threads = [threading.Thread(target=fit, args=(data, (8, 8), Preprocessing())) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == expected


def test_small_images_do_not_wait_for_large_ones() -> None:
    small = threading.Thread(target=fit, args=(encoded(np.zeros((50, 50, 3), np.uint8)), (8, 8), Preprocessing()))
    with unreadable.reserve_memory(unreadable.MAX_BYTES):
        small.start()
        small.join(10)
        assert not small.is_alive()


def test_strips_are_converted_as_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    grey, colour = generator.integers(0, 256, (37, 23)).astype(np.uint8), generator.integers(0, 256, (37, 23, 4))
    rgba = Image.fromarray(colour.astype(np.uint8), "RGBA")
    palette = rgba.convert("RGB").quantize(40)
    images = [rgba, rgba.convert("RGB"), palette, rgba.convert("LA"), rgba.convert("CMYK"), rgba.convert("HSV"),
              Image.fromarray(grey), Image.fromarray(grey).convert("1"), Image.fromarray(grey.astype(np.float32)),
              Image.fromarray(grey.astype(np.uint16) * 257), Image.fromarray(grey.astype(np.int32) * 300)]  # fmt: skip
    seen = palette.copy()
    seen.info["transparency"] = 3
    images.append(seen)
    whole = [modes.pixels_of(image) for image in images]
    monkeypatch.setattr(modes, "STRIP", 100)
    for image, expected in zip(images, whole, strict=True):
        assert np.array_equal(modes.pixels_of(image), expected), image.mode
