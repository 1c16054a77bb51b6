"""Write PNG files whose header names this program, and recognise them later."""

from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from vitreous.common.atomic_files import atomic_file

SOFTWARE = "vitreous"


def write_png(image: Image.Image, path: Path, optimize: bool = False) -> None:
    """Write a PNG atomically."""
    about = PngInfo()
    about.add_text("Software", SOFTWARE)
    with atomic_file(path) as temporary:
        image.save(temporary, "PNG", pnginfo=about, optimize=optimize)


def is_written_here(path: Path) -> bool:
    """True if a file is a PNG that this program wrote."""
    try:
        with Image.open(path) as image:
            return image.info.get("Software") == SOFTWARE
    except OSError:
        return False
