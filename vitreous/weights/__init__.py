"""Loads, saves, describes and converts checkpoints in any supported format.

`load.py` opens Vitreous folders (`native.py`) and checkpoints in other formats (`formats/`). `io/` safely reads tensors
from untrusted files, `hub.py` downloads from and uploads to the Hugging Face Hub, `catalog.py` lists pretrained
weights, and `convert.py` compares a written checkpoint with its source.
"""
