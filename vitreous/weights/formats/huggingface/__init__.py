"""transformers checkpoints: ViT, DeiT, DINOv2 and others, and the vision towers of CLIP and SigLIP (`towers.py`).

`format.py` maps tensors, `config.py` reads and writes config.json, and `processor.py` reads and writes
preprocessor_config.json.
"""

from vitreous.weights.formats.huggingface.dinov3 import HuggingFaceDinoV3
from vitreous.weights.formats.huggingface.format import HuggingFace
from vitreous.weights.formats.huggingface.towers import HuggingFaceTower

__all__ = ["HuggingFace", "HuggingFaceDinoV3", "HuggingFaceTower"]
