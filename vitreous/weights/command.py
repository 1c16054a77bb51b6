"""`vitreous convert`: a checkpoint from one format to another, and a report of what that changed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from vitreous.model.vit import ViT
from vitreous.weights.adapt import provenance_of
from vitreous.weights.load import load, save
from vitreous.weights.parity import Difference, compare, random_images


def convert(
    source: str | Path,
    target: Path,
    to: str,
    from_: str | None = None,
    image_size: Sequence[int] = (),
    num_classes: int | None = None,
    overrides: Mapping[str, Any] | None = None,
    lossy: bool = False,
    check: bool = False,
) -> list[Difference]:
    """Read, write, and read again what was written. Says how far the two are apart; with `check`, stage by stage."""
    model = load(source, from_, image_size or None, num_classes, overrides)
    save(model, target, to, lossy=lossy)
    console = Console()
    record = provenance_of(model)
    console.print(f"read {source}: {record.get('origin', 'Vitreous')}", highlight=False)
    for line in record.get("assumed", ()):
        console.print(f"  taken by convention: {line}", highlight=False)
    for name in record.get("left_out", ()):
        console.print(f"  left out: {name}", highlight=False)
    console.print(f"wrote {target}: {to}", highlight=False)
    if not isinstance(model, ViT):
        return []
    # What tensors cannot tell is known here.
    known = {"num_heads": model.config.num_heads, "image_size": model.config.image_size}
    written = load(target, to, overrides=known)
    assert isinstance(written, ViT)
    differences = compare(model.float(), written.float(), random_images(model))
    console.print(
        f"read again: outputs differ by {differences[-1].largest:.2e} at most, of {differences[-1].scale:.3g}",
        highlight=False,
    )
    if check:
        console.print(report(differences))
    return differences


def report(differences: list[Difference]) -> Table:
    table = Table("stage", "largest difference", "mean", "largest value", box=None)
    for one in differences:
        table.add_row(one.stage, f"{one.largest:.2e}", f"{one.mean:.2e}", f"{one.scale:.3g}")
    return table
