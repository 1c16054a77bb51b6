"""timm checkpoints: `format.py` maps tensors, `config.py` reads and writes config.json.

Formats that share timm's tensor names (DINOv2, MAE, PaddleClas) build on `TimmLayout` and `infer_timm`.
"""

from vitreous.weights.formats.timm.format import Timm, TimmLayout, infer_timm

__all__ = ["Timm", "TimmLayout", "infer_timm"]
