"""timm checkpoints: `format.py` maps tensors, `config.py` reads and writes config.json."""
