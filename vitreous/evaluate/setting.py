"""How a checkpoint is measured, whatever is measured of it: on which pictures, at which size, on which device."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitreous.data.open import open_data
from vitreous.data.source import DataSet, Source


@dataclass(frozen=True)
class Setting:
    """What `eval` takes besides a checkpoint and data, with or without a probe."""

    part: str | None = None
    image_size: Sequence[int] = ()  # another one than the checkpoint's
    root: Path | None = None
    val_fraction: float = 0.2
    seed: int = 0
    batch_size: int = 64
    device: str = "auto"
    precision: str = "fp32"
    workers: int = 2
    flip: bool = False

    def open(self, data: str) -> tuple[DataSet, str, Source]:
        """The data, the name of the part that is measured, and that part."""
        found = open_data(data, root=self.root, val_fraction=self.val_fraction, seed=self.seed)
        return found, *pick_part(found, self.part)


USUAL = Setting()


def pick_part(data: DataSet, part: str | None) -> tuple[str, Source]:
    """The part asked for; otherwise the test part where there is one, as it was never used to choose anything."""
    parts = {"train": data.train, "val": data.val} | ({"test": data.test} if data.test is not None else {})
    chosen = part or ("test" if data.test is not None else "val")
    if chosen not in parts:
        raise ValueError(f"part is {chosen!r}, but {data.name} has {', '.join(parts)}")
    return chosen, parts[chosen]
