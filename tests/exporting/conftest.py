"""Fixtures for tests that trace models."""

import logging

import pytest


@pytest.fixture(autouse=True)
def _no_trace_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not let pytest capture the many records of torch's trace log."""
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "propagate", False)
