"""Checkpoints: opened, described, loaded, saved and converted in any format.

`load.py` opens a source once and dispatches to `native.py` (our folders) or `foreign.py` (other systems, whose layouts
are in `formats/`). `io/` reads untrusted files into tensors; `hub.py` downloads and uploads; `convert.py` compares a
written checkpoint with its source.
"""
