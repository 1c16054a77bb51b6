"""Other systems, to compare with. A test that needs one that is not installed is skipped, and says why."""

from types import ModuleType

import pytest

from benchmarks import peers


def import_timm() -> ModuleType:
    try:
        return peers.import_timm()
    except ModuleNotFoundError as missing:
        pytest.skip(f"{missing.name} is not installed: `make setup` installs it")
