"""TensorBoard, on request."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def log_to_tensorboard(folder: Path, row: Mapping[str, Any]) -> None:
    """A row of metrics.jsonl as scalars."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ValueError("--tensorboard needs a package that is not installed: pip install vitreous[track]") from None
    with SummaryWriter(str(folder / "tensorboard")) as writer:
        for name, value in row.items():
            if isinstance(value, int | float):
                writer.add_scalar(name, value, row["step"])
