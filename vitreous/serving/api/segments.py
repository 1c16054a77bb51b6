"""Masks as JSON holds them: a PNG whose palette's indices are the classes, and which classes are how much of it."""

import base64
import io
from collections.abc import Sequence
from typing import Any

from PIL import Image

from vitreous.inference.mask_images import palette
from vitreous.inference.segment_predictor import Segmentation, SegmentPredictor
from vitreous.serving.errors import ApiError, unreadable


def masks(
    predictor: SegmentPredictor, labels: Sequence[str], pictures: Sequence[bytes]
) -> list[dict[str, Any] | ApiError]:
    """What `/v1/segment` answers for each. One at a time: at their full size, a batch of them may not fit anywhere."""
    return [segmented(predictor, labels, answer) for picture in pictures for answer in predictor(picture)]


def segmented(predictor: SegmentPredictor, labels: Sequence[str], answer: Segmentation) -> dict[str, Any] | ApiError:
    """The largest class first; those that are nowhere are left out."""
    if answer.mask is None:
        return unreadable(answer.error)
    image, file = Image.fromarray(answer.mask), io.BytesIO()
    image.putpalette(palette(predictor.background).tobytes())
    image.save(file, "PNG")
    shares, colours = answer.fractions(predictor.config.num_classes), predictor.colours()
    order = sorted((index for index, share in enumerate(shares) if share), key=lambda index: -shares[index])
    return {
        "classes": [
            {"index": index, "label": labels[index], "color": colours[index], "share": shares[index]} for index in order
        ],
        "width": image.width,
        "height": image.height,
        "mask": base64.b64encode(file.getvalue()).decode(),
    }
