"""TensorBoard, on request."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def check_tensorboard() -> None:
    """Before the work, not at the end of its first epoch."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError:
        raise ValueError("--tensorboard needs a package that is not installed: pip install vitreous[track]") from None


def log_to_tensorboard(folder: Path, row: Mapping[str, Any]) -> None:
    """A row of metrics.jsonl as scalars."""
    writer = _writer(folder / "tensorboard")
    for name, value in row.items():
        if isinstance(value, int | float):
            writer.add_scalar(name, value, row["step"])
    writer.flush()


@functools.cache  # every writer begins a file of its own
def _writer(folder: Path) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder))
