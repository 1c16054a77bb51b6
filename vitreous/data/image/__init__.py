"""From an image as it is stored to uint8 pixels of the size a model needs.

decoding.py: memory limits, headers, decoding of JPEG and of all formats and colour modes that Pillow opens (palettes,
alpha, CMYK, 16 bits, floats), and resizing. crop.py: the centre and random crops of images and masks.
"""

from vitreous.data.image.crop import fit, random_resized_crop
from vitreous.data.image.decoding import UnreadableImage, decode, decode_errors, resize, size_of

__all__ = ["UnreadableImage", "decode", "decode_errors", "fit", "random_resized_crop", "resize", "size_of"]
