"""How a checkpoint is measured, whatever is measured of it: on which pictures, at which size, on which device."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vitreous.data.open import open_data
from vitreous.data.sources.base import DataSet, Source
from vitreous.model.kinds import AnyModel
from vitreous.weights.adapt import provenance_of


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
    decode: Literal["exact", "fast"] = "exact"  # fast: large JPEGs at a reduced scale

    @property
    def exact_from(self) -> int:
        """First epoch that `Reader` decodes exactly; evaluation is epoch 0."""
        return 0 if self.decode == "exact" else 1

    def open(self, data: str) -> tuple[DataSet, str, Source]:
        """The data, the name of the part that is measured, and that part."""
        found = open_data(data, root=self.root, val_fraction=self.val_fraction, seed=self.seed)
        return found, *pick_part(found, self.part)

    def doubt(self, model: AnyModel, data: DataSet) -> str:
        """What to say where pictures that a model is measured on may be among those that it learned from."""
        trained = provenance_of(model)
        then, now = ((one.get("seed"), one.get("val_fraction")) for one in (trained, vars(self)))
        if not data.val_drawn or trained.get("data") != data.name or None in then or then == now:
            return ""
        return (
            f"the checkpoint learned from another split of {data.name} and may know some of these pictures; its own is "
            f"--seed {then[0]} --val-fraction {then[1]}"
        )


USUAL = Setting()


def pick_part(data: DataSet, part: str | None) -> tuple[str, Source]:
    """The part asked for; otherwise the test part where there is one, as it was never used to choose anything."""
    parts = {"train": data.train, "val": data.val} | ({"test": data.test} if data.test is not None else {})
    chosen = part or ("test" if data.test is not None else "val")
    if chosen not in parts:
        raise ValueError(f"part is {chosen!r}, but {data.name} has {', '.join(parts)} ({data.note})")
    return chosen, parts[chosen]
