"""timm's checkpoints: `format.py` reads and writes them, `layout.py` maps tensors, `config.py` reads config.json."""
