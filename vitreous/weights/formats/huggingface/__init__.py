"""transformers checkpoints: ViT, DeiT, DINOv2 and others.

`format.py` maps tensors, `config.py` reads and writes config.json, and `processor.py` reads and writes
preprocessor_config.json.
"""

from vitreous.weights.formats.huggingface.format import HuggingFace

__all__ = ["HuggingFace"]
