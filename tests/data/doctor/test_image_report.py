import io

import numpy as np
import pytest
from PIL import Image

from vitreous.data.doctor.image_report import look_at

RANDOM = np.random.default_rng(0)


def encode(image: Image.Image, form: str = "PNG", **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


def noise(mode: str = "RGB", size: tuple[int, int] = (60, 40)) -> Image.Image:
    return Image.fromarray(RANDOM.integers(0, 256, (size[1], size[0], 3), np.uint8)).convert(mode)


def turned() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return encode(noise(), "JPEG", exif=exif)


CASES = {
    "plain": (encode(noise(), "JPEG"), (), (40, 60)),
    "grey": (encode(noise("L")), ("grey",), (40, 60)),
    "one bit": (encode(noise("1")), ("grey",), (40, 60)),
    "cmyk": (encode(noise("CMYK"), "JPEG"), ("CMYK",), (40, 60)),
    "16 bit": (
        encode(Image.fromarray(RANDOM.integers(0, 65536, (40, 60), np.uint16))),
        ("grey", "more than 8 bits"),
        (40, 60),
    ),
    "palette": (encode(noise("P")), ("palette",), (40, 60)),
    "alpha": (encode(noise("RGBA")), ("alpha",), (40, 60)),
    "animated": (
        encode(noise("RGB"), "WEBP", save_all=True, append_images=[noise("RGB")], lossless=True),
        ("animated",),
        (40, 60),
    ),
    "small": (encode(noise(size=(31, 50))), ("smaller than 32 pixels",), (50, 31)),
    "long": (encode(noise(size=(200, 40))), ("more than 4 times as long as wide",), (40, 200)),
    "turned": (turned(), ("turned by EXIF",), (60, 40)),
    "array": (np.zeros((40, 60, 3), np.uint8), (), (40, 60)),
    "grey array": (np.zeros((40, 60, 1), np.uint8), ("grey",), (40, 60)),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_odd(case: str) -> None:
    picture, odd, size = CASES[case]
    look = look_at(picture)
    assert (look.odd, look.size, look.error) == (odd, size, None)


@pytest.mark.parametrize(
    "data", [b"", b"not a picture", encode(noise(), "JPEG")[:900], encode(noise(size=(300, 300)))[:5000]], ids=len
)
def test_what_cannot_be_read(data: bytes) -> None:
    look = look_at(data)
    assert look.size is None
    assert look.error


def test_twins_are_equal_files() -> None:
    one = noise()
    png, again, jpeg = encode(one), encode(one), encode(one, "JPEG")
    assert look_at(png).digest == look_at(again).digest != look_at(jpeg).digest
    flat = np.zeros((4, 9, 1), np.uint8)
    assert look_at(flat).digest != look_at(flat.reshape(9, 4, 1)).digest
