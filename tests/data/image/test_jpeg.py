"""JPEG decoding compared with Pillow: in full, at reduced scales, and only the needed rows."""

import io
import math
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from images import difference, encoded, jpeg_decoder, smooth
from vitreous.data.image import decode, jpeg, size_of


@pytest.fixture(params=["simplejpeg", "Pillow"])
def decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    yield from jpeg_decoder(request.param, monkeypatch)


@pytest.mark.parametrize("options", [{}, {"subsampling": 0}, {"subsampling": 1}, {"progressive": True}], ids=str)
@pytest.mark.parametrize("size", [(37, 53), (1, 1), (8, 300), (64, 17)], ids=str)
def test_jpeg_matches_pillow(decoder: str, options: dict[str, Any], size: tuple[int, int]) -> None:
    data = encoded(smooth(*size), "JPEG", **options)
    assert size_of(data) == size
    expected = Image.open(io.BytesIO(data))
    assert difference(decode(data), np.array(expected)) <= 1
    assert difference(decode(data, channels=1), np.array(expected.convert("L"))[..., None]) <= 2


@pytest.mark.parametrize(
    "exif", [b"Exif\0\0", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0MM\0*\0\0\0\x08\0\x01" + bytes(12)]
)
def test_broken_exif_is_ignored(exif: bytes) -> None:
    data = encoded(smooth(8, 12), "JPEG")
    segment = b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif
    assert torch.equal(decode(data[:2] + segment + data[2:]), decode(data))


@pytest.mark.parametrize("at_least", [(24, 30), (75, 100), (60, 100), (187, 250), (188, 250), (376, 500)], ids=str)
def test_reduced_scale_is_at_least_the_size_needed(decoder: str, at_least: tuple[int, int]) -> None:
    pixels = smooth(375, 500)
    data = encoded(pixels, "JPEG", quality=95)
    factor = max((f for f in (1, 2, 4, 8) if 375 // f >= at_least[0] and 500 // f >= at_least[1]), default=1)
    image = decode(data, at_least=at_least)
    assert image.shape == (3, math.ceil(375 / factor), math.ceil(500 / factor))
    # The mean of every square; JPEG repeats border pixels to complete the last ones.
    padded = np.pad(pixels, [(0, -375 % factor), (0, -500 % factor), (0, 0)], mode="edge")
    means = padded.reshape(image.shape[1], factor, image.shape[2], factor, 3).mean(axis=(1, 3))
    assert difference(image, means.round()) <= 4
    assert (
        difference(decode(data, 1, at_least), np.array(Image.fromarray(means.astype(np.uint8)).convert("L"))[..., None])
        <= 3
    )


@settings(max_examples=60, deadline=None)
@given(
    size=st.tuples(st.integers(1, 130), st.integers(1, 130)),
    subsampling=st.integers(0, 2),
    factor=st.sampled_from([1, 2, 4, 8]),
    restarts=st.booleans(),
    data=st.data(),
)
def test_partial_decoding_gives_the_same_rows(
    size: tuple[int, int], subsampling: int, factor: int, restarts: bool, data: st.DataObject
) -> None:
    pytest.importorskip("simplejpeg")
    jpeg._simplejpeg.cache_clear()
    noise = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    file = encoded(noise, "JPEG", subsampling=subsampling, **({"restart_marker_rows": 1} if restarts else {}))
    header = jpeg.read_jpeg_header(file)
    assert header is not None
    bottom = data.draw(st.integers(1, size[0]))
    whole = jpeg.decode_rows(file, header, False, factor, size[0])
    part = jpeg.decode_rows(file, header, False, factor, bottom)
    if whole is None or part is None:  # Pillow decodes tiny images whose scales collide
        assert min(size) < 8
        return
    assert whole.shape == (math.ceil(size[0] / factor), math.ceil(size[1] / factor), 3)
    assert len(part) == math.ceil(min(bottom + 16, size[0]) / factor)
    rows = math.ceil(bottom / factor)
    assert np.array_equal(part[:rows], whole[:rows])
