"""Convert every mode that Pillow opens to 8-bit grey or RGB: palettes, alpha, CMYK, 16 bits, floats, 1 bit."""

import io
import re
import warnings
from collections.abc import Callable, Iterator

import numpy as np
from PIL import Image, ImageChops, UnidentifiedImageError

STRIP = 1 << 20  # pixels that are converted at a time
# Bytes for each pixel that Pillow's decoders allocate beside the image: canvases of an animation, whole frames.
DECODER_BYTES = {"WEBP": 12, "AVIF": 12, "JPEG2000": 16, "TIFF": 4, "GIF": 1}

PROGRAMS = ("EPS", "WMF")  # Pillow would pass these to Ghostscript or Windows to execute

_ORIENTATION = 0x0112  # the EXIF tag
_PILLOW = r"PIL\."  # its modules
_FROM_PILLOW = ("ignore", None, Warning, re.compile(_PILLOW), 0)  # the filter, as Python keeps it


def _quieten() -> None:
    """Ignore Pillow's warnings of odd metadata and large images; the important ones are errors of our own.

    Permanently: `catch_warnings` sets and restores the filters of the whole process, so threads that decode images
    would undo what other threads have set meanwhile.
    """
    if _FROM_PILLOW not in warnings.filters:
        warnings.filterwarnings("ignore", module=_PILLOW)


def open_image(data: bytes) -> Image.Image:
    """Read the header; an animation is at its first frame."""
    _quieten()
    image = Image.open(io.BytesIO(data))
    if image.format in PROGRAMS:
        raise UnidentifiedImageError
    return image


def orientation_of(image: Image.Image, data: bytes) -> int:
    """Return EXIF's orientation, 1 to 8, without decoding."""
    if image.format == "TIFF":  # Pillow turns it on loading, and reports the size after that
        return 1
    if image.format == "PNG" and b"eXIf" not in data:  # Pillow would decode the image to search behind it
        return 1
    value = image.getexif().get(_ORIENTATION, 1)
    return value if value in range(1, 9) else 1


def reduce(image: Image.Image, grey: bool, factor: int) -> int:
    """Make a JPEG decode at 1 / factor of its size, if Pillow can; return the factor it will decode at."""
    width, height = image.size
    if factor == 1 or image.format not in ("JPEG", "MPO"):
        return 1
    image.draft("L" if grey else None, (width // factor, height // factor))
    return factor if image.size == (-(-width // factor), -(-height // factor)) else 1


def bytes_to_decode(image: Image.Image) -> int:
    """Estimate the memory to decode and resize an image: Pillow's copy, its decoder's, and the result."""
    own = 2 if image.mode.startswith("I;16") else 1 if image.mode in ("1", "L", "P") else 4
    result = 1 if _is_grey(image) else 3
    resizing = 4 if result == 1 else 0  # torch's kernel widens one channel to four
    each = result + max(own + DECODER_BYTES.get(image.format or "", 0), resizing)
    return image.width * image.height * each


def pixels_of(image: Image.Image) -> np.ndarray:
    """Decode to uint8: [h, w, 1] for a grey image, else [h, w, 3]. The conversion needs little extra memory."""
    image.load()
    if _is_deep(image):
        return _eight_bits(image)
    convert, channels = _converter(image)
    return _convert(image, convert, channels)


def _is_deep(image: Image.Image) -> bool:
    return image.mode == "F" or image.mode.startswith("I")


def _is_grey(image: Image.Image) -> bool:
    return _is_deep(image) or (image.mode in ("1", "L") and not image.has_transparency_data)


def _converter(image: Image.Image) -> tuple[Callable[[Image.Image], np.ndarray], int]:
    """Return the conversion of a strip of this image to 8 bits, and its number of channels."""
    if image.has_transparency_data:
        return lambda strip: over_white(np.asarray(strip.convert("RGBA"))), 3
    if image.mode in ("1", "L"):
        return lambda strip: np.asarray(strip.convert("L"))[..., None], 1
    # Adobe stores CMYK inverted and marks the file. Pillow assumes that every CMYK JPEG is Adobe's.
    if image.mode == "CMYK" and image.format in ("JPEG", "MPO") and "adobe" not in image.info:
        return lambda strip: np.asarray(ImageChops.invert(strip).convert("RGB")), 3
    return lambda strip: np.asarray(strip.convert("RGB")), 3


def _convert(image: Image.Image, convert: Callable[[Image.Image], np.ndarray], channels: int) -> np.ndarray:
    result = np.empty((image.height, image.width, channels), np.uint8)
    for rows, strip in _strips(image):
        result[rows] = convert(strip)
    return result


def _strips(image: Image.Image) -> Iterator[tuple[slice, Image.Image]]:
    """A few rows at a time: the intermediate numbers of a conversion are several times as large as pixels."""
    count = max(STRIP // image.width, 1)
    for top in range(0, image.height, count):
        rows = slice(top, min(top + count, image.height))
        yield rows, image.crop((0, rows.start, image.width, rows.stop))


def in_strips(pixels: np.ndarray, convert: Callable[[np.ndarray], np.ndarray], channels: int) -> np.ndarray:
    """Apply `convert` to a few rows at a time."""
    result = np.empty((*pixels.shape[:2], channels), np.uint8)
    count = max(STRIP // pixels.shape[1], 1)
    for top in range(0, len(pixels), count):
        result[top : top + count] = convert(pixels[top : top + count])
    return result


def _eight_bits(image: Image.Image) -> np.ndarray:
    """Scale the format's range to 0..255; Pillow's own conversion clips it.

    The range of 16-bit files is known. For 32-bit integers and floats it is the smallest usual one that holds the
    image: 1 (floats), 255 (floats), 65535, or else up to the brightest pixel.
    """
    if image.mode.startswith("I;16") or image.format == "PNG":
        return _convert(image, lambda strip: ((np.asarray(strip).astype(np.uint32) + 128) // 257)[..., None], 1)

    def values(strip: Image.Image) -> np.ndarray:
        return np.nan_to_num(np.asarray(strip).astype(np.float64), posinf=0, neginf=0)

    brightest = max(float(values(strip).max()) for _, strip in _strips(image))
    ranges = (1.0, 255.0, 65535.0) if image.mode == "F" else (65535.0,)
    top = next((top for top in ranges if brightest <= top), brightest)
    return _convert(image, lambda strip: np.clip(np.rint(values(strip) * (255 / top)), 0, 255)[..., None], 1)


def over_white(rgba: np.ndarray) -> np.ndarray:
    """Blend an image with alpha over white.

    Dropping alpha, as `convert("RGB")` does, would show the arbitrary colours of invisible pixels.
    """
    colour, alpha = rgba[..., :3].astype(np.uint16), rgba[..., 3:].astype(np.uint16)
    return ((colour * alpha + 255 * (255 - alpha) + 127) // 255).astype(np.uint8)


def grey_of(rgb: np.ndarray) -> np.ndarray:
    """Luma by ITU-R 601 (as Pillow's mode L and JPEG's Y), uint8 [h, w, 1]."""
    weighted = rgb @ np.array([19595, 38470, 7471], dtype=np.uint32)
    return ((weighted + 0x8000) >> 16).astype(np.uint8)[..., None]
