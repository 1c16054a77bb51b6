"""Image decoding, resizing and cropping to uint8 tensors.

decoding.py: memory limits, headers, resizing, and decoding of all formats and colour modes that Pillow supports
(palettes, alpha, CMYK, 16-bit, float). jpeg.py: JPEG headers, and decoding at a reduced scale. crop.py: centre and
random crops of images and masks. batch_crop.py: random crops of whole batches on the device.
"""

from vitreous.data.image.crop import fit, random_resized_crop
from vitreous.data.image.decoding import UnreadableImage, decode, decode_errors, resize, size_of

__all__ = ["UnreadableImage", "decode", "decode_errors", "fit", "random_resized_crop", "resize", "size_of"]
