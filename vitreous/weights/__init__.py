"""Loads, saves, describes and converts checkpoints in any supported format.

`load.py` opens Vitreous folders (`native.py`) and checkpoints in other formats (`formats/`). `io/` safely reads tensors
from untrusted files, `hub.py` downloads from and uploads to the Hugging Face Hub, `catalog.py` lists pretrained weights
by name, and `convert.py` converts checkpoints and compares the result with the source.
"""
