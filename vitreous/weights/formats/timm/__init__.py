"""timm checkpoints: `format.py` and `eva.py` map the tensors of its classes `VisionTransformer` and `Eva`, and
`config.py` reads and writes config.json.

Formats that share timm's tensor names (DINOv2, MAE, PaddleClas) build on `TimmLayout` and `infer_timm`.
"""

from vitreous.weights.formats.timm.eva import TimmEva
from vitreous.weights.formats.timm.format import Timm, TimmLayout, infer_timm

__all__ = ["Timm", "TimmEva", "TimmLayout", "infer_timm"]
