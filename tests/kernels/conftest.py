"""Without a GPU, the kernels run in Triton's interpreter, which must be chosen before they are imported."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

pytest.importorskip("triton", reason="the kernels need triton")
