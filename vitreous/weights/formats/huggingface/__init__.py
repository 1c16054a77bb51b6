"""transformers checkpoints: `format.py` maps tensors; `config.py` and `processor.py` read and write JSON files."""
