"""transformers' folders: `format.py` maps tensors, `config.py` and `processor.py` read and write the JSON files."""
