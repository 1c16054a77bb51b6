"""One picture looked at closely: can it be decoded, how large is it, what is odd about it, and is it another's twin?"""

import hashlib
from dataclasses import dataclass

import numpy as np
from PIL import Image

from vitreous.common.checks import Size
from vitreous.data.image import modes
from vitreous.data.image.decode import UnreadableImage, decode, size_of
from vitreous.data.sources.base import Picture

SMALL = 32  # pixels of the shorter side
EXTREME = 4  # times as long as wide

# What may be odd about a picture, in the order in which it is told.
ODDITIES = (
    "grey",
    "CMYK",
    "more than 8 bits",
    "palette",
    "alpha",
    "animated",
    f"smaller than {SMALL} pixels",
    f"more than {EXTREME} times as long as wide",
    "turned by EXIF",
)


@dataclass(frozen=True)
class Look:
    """What there is to say about a picture. `error` says why it cannot be read, and then there is no size."""

    digest: bytes  # of the stored bytes: equal for copies of a file
    size: Size | None
    odd: tuple[str, ...]
    error: str | None = None


def look_at(picture: Picture) -> Look:
    """Decodes the picture, as training will."""
    stored = picture if isinstance(picture, bytes) else repr(picture.shape).encode() + picture.tobytes()
    digest = hashlib.blake2b(stored, digest_size=16).digest()
    try:
        height, width = size_of(picture)
        decode(picture, at_least=(SMALL, SMALL))
        odd = _array_odd(picture) if isinstance(picture, np.ndarray) else _file_odd(picture)
    except UnreadableImage as error:
        return Look(digest, None, (), str(error))
    if min(height, width) < SMALL:
        odd.add(f"smaller than {SMALL} pixels")
    if max(height, width) > EXTREME * min(height, width):
        odd.add(f"more than {EXTREME} times as long as wide")
    return Look(digest, (height, width), tuple(name for name in ODDITIES if name in odd))


def _array_odd(pixels: np.ndarray) -> set[str]:
    channels = pixels.shape[2] if pixels.ndim == 3 else 1
    return {"grey"} if channels == 1 else {"alpha"} if channels == 4 else set()


def _file_odd(data: bytes) -> set[str]:
    """From the header."""
    image = modes.open_image(data)
    deep = image.mode == "F" or image.mode.startswith("I")
    said = {
        "grey": deep or image.mode in ("1", "L", "LA", "La"),
        "CMYK": image.mode == "CMYK",
        "more than 8 bits": deep,
        "palette": image.mode in ("P", "PA"),
        "alpha": image.has_transparency_data,
        "animated": _animated(image),
        "turned by EXIF": modes.orientation_of(image, data) != 1,
    }
    return {name for name, true in said.items() if true}


def _animated(image: Image.Image) -> bool:
    # A phone's MPO file has several frames too, but they are one picture and its preview.
    return image.format != "MPO" and bool(getattr(image, "is_animated", False))
