"""Format and size of uploaded images by their headers, and multipart forms."""

import contextlib
import io
import warnings
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from images import encoded, smooth
from vitreous.serving.errors import ApiError
from vitreous.serving.requests import check_image, form_field, format_of, stored_size
from vitreous.serving.settings import Settings


@pytest.mark.parametrize(
    ("format", "options"),
    [
        ("JPEG", {}),
        ("JPEG", {"progressive": True}),
        ("PNG", {}),
        ("WEBP", {}),
        ("WEBP", {"lossless": True}),
        ("WEBP", {"exif": b"Exif\0\0"}),
        ("WEBP", {"save_all": True, "append_images": [Image.new("RGB", (51, 30))]}),
    ],
)
@pytest.mark.parametrize("size", [(30, 51), (1, 1), (700, 1)])
def test_format_and_size_are_read_from_the_header(format: str, options: dict[str, Any], size: tuple[int, int]) -> None:
    if "append_images" in options:
        options = {**options, "append_images": [Image.new("RGB", size[::-1])]}
    data = encoded(smooth(*size), format, **options)
    assert format_of(data) == format
    assert stored_size(data) == size


@pytest.mark.parametrize("format", ["GIF", "BMP", "TIFF", "PPM", "ICO", "PCX"])
def test_other_formats_are_rejected(format: str) -> None:
    with pytest.raises(ApiError) as caught:
        check_image(encoded(smooth(30, 50), format), Settings())
    assert (caught.value.status_code, caught.value.code) == (415, "unsupported_type")


@pytest.mark.parametrize(("pixels", "allowed"), [(1500, True), (1499, False)])
def test_the_number_of_pixels_is_limited(pixels: int, allowed: bool) -> None:
    data, settings = encoded(smooth(30, 50)), Settings(max_pixels=pixels)
    if allowed:
        check_image(data, settings)
        return
    with pytest.raises(ApiError, match=r"1,500 pixels \(50 x 30\); the maximum is 1,499") as caught:
        check_image(data, settings)
    assert caught.value.status_code == 413


@given(st.binary(max_size=300), st.sampled_from([b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"RIFF0000WEBPVP8X"]))
def test_arbitrary_bytes_raise_only_api_errors(data: bytes, start: bytes) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with contextlib.suppress(ApiError):  # and no other error
            check_image(start + data, Settings())


@given(st.binary(max_size=500), st.lists(st.binary(max_size=40), max_size=3), st.booleans())
def test_a_form_field_is_returned_unchanged(data: bytes, others: list[bytes], first: bool) -> None:
    if any(b"--edge" in part for part in (data, *others)):
        return
    file = io.BytesIO()
    parts = [(b"other%d" % number, part) for number, part in enumerate(others)]
    for name, part in [(b"image", data), *parts] if first else [*parts, (b"image", data)]:
        file.write(b'--edge\r\nContent-Disposition: form-data; name="%s"; filename="x"\r\n\r\n%s\r\n' % (name, part))
    file.write(b"--edge--\r\n")
    assert form_field(file.getvalue(), "multipart/form-data; boundary=edge", "image") == data


@given(st.binary(max_size=300))
def test_arbitrary_forms_raise_only_api_errors(body: bytes) -> None:
    for start in (b"", b'--x\r\nContent-Disposition: form-data; name="image"\r\n\r\n'):
        with contextlib.suppress(ApiError):  # and no other error
            assert isinstance(form_field(start + body, "multipart/form-data; boundary=x", "image"), bytes)


BOUNDARIES = st.one_of(
    st.integers(0, 600).map(lambda length: "boundary=" + "x" * length),
    st.text(st.characters(max_codepoint=255), max_size=300).map("boundary={}".format),
    st.text(st.characters(max_codepoint=255), max_size=50),
    st.sampled_from(
        ["boundary*=utf-8''%ff", "boundary*0=x; boundary*1=y", "boundary", 'boundary=""', "boundary=x;" * 99]
    ),
)
PARTS = st.sampled_from(
    [b"--x", b"--", b"\r\n", b"Content-Disposition: form-data; name=", b'"', b"image", b";", b"*=", b"="]
)


@given(st.lists(PARTS | st.binary(max_size=4), max_size=30).map(b"".join), BOUNDARIES)
def test_arbitrary_boundaries_raise_only_api_errors(body: bytes, boundary: str) -> None:
    with contextlib.suppress(ApiError):  # and no other error
        assert isinstance(form_field(body, f"multipart/form-data; {boundary}", "image"), bytes)


@pytest.mark.parametrize(("others", "allowed"), [(31, True), (32, False)])
def test_the_number_of_form_parts_is_limited(others: int, allowed: bool) -> None:
    """Each part takes time, and a large body could contain millions."""
    part = b'--x\r\nContent-Disposition: form-data; name="%s"\r\n\r\nabc\r\n'
    body = part % b"other" * others + part % b"image" + b"--x--\r\n"
    if allowed:
        assert form_field(body, "multipart/form-data; boundary=x", "image") == b"abc"
        return
    with pytest.raises(ApiError, match="more than 32 parts") as caught:
        form_field(body, "multipart/form-data; boundary=x", "image")
    assert (caught.value.status_code, caught.value.code) == (400, "bad_form")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"port": 70000}, "port is 70000"),
        ({"max_batch": 0}, "max_batch is 0"),
        ({"queue": 0}, "queue is 0"),
        ({"timeout": float("nan")}, "timeout is nan"),
        ({"max_body_mb": 0.0}, "max_body_mb is 0"),
        ({"api_key": ""}, "api_key is"),
        ({"cors_origins": ("https://app.example/path",)}, "cors_origins is 'https://app.example/path'"),
        ({"frame_origins": ("app.example; script-src *",)}, "frame_origins is"),
        ({"api_key": "two\nlines"}, "api_key is"),
    ],
)
def test_invalid_settings_are_rejected(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Settings(**changes)  # type: ignore[arg-type]


def test_the_key_is_not_in_the_repr() -> None:
    assert "sesame" not in repr(Settings(api_key="sesame"))
