"""Without a GPU, the kernels run in Triton's interpreter (see tests/conftest.py)."""

import pytest

pytest.importorskip("triton", reason="the kernels need triton")
