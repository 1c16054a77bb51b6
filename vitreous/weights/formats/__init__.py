"""Checkpoint formats of other systems.

`base.py` has the interface of a format and the builder of a config, `mapping.py` converts tensors by tables in both
directions, `write_checks.py` finds parts that a system lacks, and `detection.py` lists all formats and detects the one
of a checkpoint. Each system has a file or folder.
"""
