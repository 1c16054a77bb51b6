"""General helpers that know nothing of images and models, and that every other package may use.

checks.py: argument checks and error messages. codec.py: dataclasses to JSON and back. text.py: terminal output.
progress.py: progress of long computations. atomic_files.py: files and folders that are written completely or not at
all. untrusted_files.py: files of unknown origin. network.py and hub_client.py: downloads. rng.py: random numbers by
sample. threads.py: cores and threads. fonts.py: fonts for images. lazy_names.py: re-exports on first use. The modules
have nothing in common, so there is nothing to re-export: import the module.
"""
