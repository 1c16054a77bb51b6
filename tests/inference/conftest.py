"""Images for the tests of predictors."""

from pathlib import Path

import numpy as np
import pytest

from predictors import save


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    """Noise in several sizes, shapes and formats."""
    rng = np.random.default_rng(0)
    sizes = [(50, 40), (40, 90), (24, 32), (200, 33), (13, 9), (64, 64), (31, 97)]
    return [
        save(rng.integers(0, 256, (*size, 3), dtype=np.uint8), tmp_path / f"{i}{'.jpg' if i % 2 else '.png'}")
        for i, size in enumerate(sizes)
    ]
