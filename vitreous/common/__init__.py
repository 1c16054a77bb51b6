"""General helpers for all other packages, independent of images and models.

checks.py: argument checks and error messages. codec.py: dataclasses to JSON and back. text.py: terminal output.
progress.py: progress of long computations. atomic_files.py: files and folders that are written completely or not at
all. untrusted_files.py: files of unknown origin. network.py and hub_client.py: downloads. rng.py: random numbers per
sample. threads.py: cores and threads. device.py: devices, dtypes and memory. compiler.py: code that is compiled or
exported. distributed.py: processes of a distributed run. fonts.py: fonts for images. lazy_names.py: re-exports on first
use. Nothing is re-exported here.
"""
