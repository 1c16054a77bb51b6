"""Everything that Pillow opens, as 8-bit grey or RGB pixels: palettes, alpha, inks, 16 bits, floats, 1 bit."""

import io
import re
import warnings

import numpy as np
from PIL import Image, ImageChops

_ORIENTATION = 0x0112  # the EXIF tag
_PILLOW = r"PIL\."  # its modules
_FROM_PILLOW = ("ignore", None, Warning, re.compile(_PILLOW), 0)  # the filter, as Python keeps it


def _quieten() -> None:
    """Pillow warns of odd metadata and of large pictures; what matters of that is an error of ours.

    For good: `catch_warnings` sets and restores the filters of the whole process, so threads that decode pictures would
    undo what other threads have set meanwhile.
    """
    if _FROM_PILLOW not in warnings.filters:
        warnings.filterwarnings("ignore", module=_PILLOW)


def open_image(data: bytes) -> Image.Image:
    """Read the header. An animation stands at its first frame."""
    _quieten()
    return Image.open(io.BytesIO(data))


def orientation_of(image: Image.Image, data: bytes) -> int:
    """EXIF's orientation, 1 to 8, without decoding."""
    if image.format == "TIFF":  # Pillow turns it while it loads, and says the size after that
        return 1
    if image.format == "PNG" and b"eXIf" not in data:  # Pillow would decode the picture to look behind it
        return 1
    value = image.getexif().get(_ORIENTATION, 1)
    return value if value in range(1, 9) else 1


def reduce(image: Image.Image, grey: bool, factor: int) -> int:
    """Let a JPEG decode at 1 / factor of its size, if Pillow can. Returns the factor that it will decode at."""
    width, height = image.size
    if factor == 1 or image.format not in ("JPEG", "MPO"):
        return 1
    image.draft("L" if grey else None, (width // factor, height // factor))
    return factor if image.size == (-(-width // factor), -(-height // factor)) else 1


def pixels_of(image: Image.Image) -> np.ndarray:
    """Decode: uint8 [h, w, 1] if the picture is grey, [h, w, 3] if not."""
    if image.mode == "F" or image.mode.startswith("I"):
        return _eight_bits(np.asarray(image), image.format == "PNG")[..., None]
    if image.has_transparency_data:
        return over_white(np.asarray(image.convert("RGBA")))
    if image.mode in ("1", "L"):
        return np.array(image.convert("L"))[..., None]
    # Adobe stores inks inverted, and says so. Pillow believes that every CMYK JPEG is Adobe's.
    if image.mode == "CMYK" and image.format in ("JPEG", "MPO") and "adobe" not in image.info:
        image = ImageChops.invert(image)
    return np.array(image.convert("RGB"))


def _eight_bits(values: np.ndarray, sixteen: bool) -> np.ndarray:
    """Scale the format's range to 0..255; Pillow's own conversion clips it.

    16-bit files say what their range is. For 32-bit integers and floats it is the smallest usual one that holds the
    picture: 1 (floats), 255 (floats), 65535, or else up to the brightest pixel.
    """
    if values.dtype.itemsize == 2 or sixteen:
        return ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)
    is_float = values.dtype.kind == "f"
    values = np.nan_to_num(values.astype(np.float64), posinf=0, neginf=0)
    brightest = values.max()
    ranges = (1.0, 255.0, 65535.0) if is_float else (65535.0,)
    top = next((top for top in ranges if brightest <= top), brightest)
    return np.clip(np.rint(values * (255 / top)), 0, 255).astype(np.uint8)


def over_white(rgba: np.ndarray) -> np.ndarray:
    """Lay a picture with alpha on white, the page that such pictures are drawn for.

    Dropping alpha, as `convert("RGB")` does, shows whatever colours the invisible pixels happen to have.
    """
    colour, alpha = rgba[..., :3].astype(np.uint16), rgba[..., 3:].astype(np.uint16)
    return ((colour * alpha + 255 * (255 - alpha) + 127) // 255).astype(np.uint8)


def grey_of(rgb: np.ndarray) -> np.ndarray:
    """Luma by ITU-R 601 (as Pillow's mode L and JPEG's Y), uint8 [h, w, 1]."""
    weighted = rgb @ np.array([19595, 38470, 7471], dtype=np.uint32)
    return ((weighted + 0x8000) >> 16).astype(np.uint8)[..., None]


def upright(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Turn and mirror pixels [h, w, c] as EXIF's orientation asks."""
    if orientation == 1:
        return pixels
    if orientation >= 5:
        pixels = pixels.transpose(1, 0, 2)
    rows = -1 if orientation in (3, 4, 7, 8) else 1
    columns = -1 if orientation in (2, 3, 6, 7) else 1
    return np.ascontiguousarray(pixels[::rows, ::columns])
