"""Fixtures for tests that trace models."""

import logging

import jaxtyping
import pytest


@pytest.fixture(autouse=True)
def _tracing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the runtime type checker, which rejects torch's symbolic sizes, and the capture of torch's trace log."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "propagate", False)
