"""Shared by all tests: a fixed seed for each, and small models that still have every part."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
