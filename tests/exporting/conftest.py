"""Fixtures for tests that trace models."""

import logging
from collections.abc import Iterator

import jaxtyping
import pytest


@pytest.fixture(autouse=True, scope="module")
def _tracing() -> Iterator[None]:
    """Disable the runtime type checker, which rejects torch's symbolic sizes, and the capture of torch's trace log."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jaxtyping.config, "jaxtyping_disable", True)
        patch.setattr(logging.getLogger("torch.__trace"), "propagate", False)
        yield
