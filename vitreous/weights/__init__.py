"""Checkpoints: opened, described, loaded, saved and converted in any format.

`load.py` opens a source once: a folder of ours (`native.py`), or a checkpoint of another system, whose layout is in
`formats/`. `io/` reads untrusted files into tensors; `hub.py` downloads and uploads; `convert.py` compares a written
checkpoint with its source.
"""
