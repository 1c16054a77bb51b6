"""Reader for torch and Paddle pickles, which does not execute code in the files.

`read.py` opens the files and writes `.pdparams`, `machine.py` interprets the opcodes, and `tensors.py` builds tensors
from the few globals that are allowed. All other objects become `Ignored`.
"""

from vitreous.weights.io.pickle.read import read_pickle, write_pdparams
from vitreous.weights.io.pickle.tensors import Ignored

__all__ = ["Ignored", "read_pickle", "write_pdparams"]
