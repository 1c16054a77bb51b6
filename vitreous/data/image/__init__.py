"""From an image as it is stored to uint8 pixels of the size a model needs.

decoding.py: headers, memory limits, decoding and resizing. crop.py: the centre and random crops of images and masks.
jpeg.py: JPEG headers and partial decoding. colour_modes.py: palettes, alpha, CMYK, 16 bits and floats as grey or RGB.
"""

from vitreous.data.image.crop import fit, random_resized_crop
from vitreous.data.image.decoding import UnreadableImage, decode, decode_errors, resize, size_of

__all__ = ["UnreadableImage", "decode", "decode_errors", "fit", "random_resized_crop", "resize", "size_of"]
