"""Fixtures for tests of training."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _memory_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Report plenty of memory for settings that are chosen for a GPU on a machine without one."""
    if not torch.cuda.is_available():
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (1 << 40, 1 << 40))
