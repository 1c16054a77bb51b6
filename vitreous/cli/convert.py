"""The verb `vitreous convert`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from vitreous.cli import ImageSize

if TYPE_CHECKING:
    from vitreous.weights.convert import Conversion


def convert(
    source: Annotated[Positional[str], arg(metavar="SRC")],
    target: Annotated[Positional[Path], arg(metavar="DST")],
    *,
    to: str,
    from_: Annotated[str | None, arg(name="from")] = None,
    image_size: ImageSize = (),
    num_classes: int | None = None,
    set: tuple[str, ...] = (),
    lossy: bool = False,
    check: bool = False,
) -> None:
    """Convert a checkpoint to another system's format, read it back and compare the outputs.

    Example: vitreous convert ViT-B_16.npz vit-b16/ --to huggingface

    Args:
        source: A file or folder of any format, or hf-hub:owner/name.
        target: A folder, or a file whose suffix selects its kind: .safetensors, .pth, .npz, .pdparams.
        to: The format: vitreous, google, big_vision, timm, huggingface, torchvision, dinov2, mae, lucidrains, paddle,
            paddlevit.
        from_: The format of the source; detected by default.
        image_size: Another image size; positions are resampled as the source's system does.
        num_classes: Replace the head by a new one for this number of classes; 0 for none.
        set: Config fields that the tensors do not show, as field=JSON: --set num_heads=4
        lossy: Write it even if the other system computes differently with the same weights, e.g. with another GELU.
        check: Print the differences stage by stage.
    """
    import vitreous
    from vitreous.common.codec import parse_fields

    size, fields = image_size or None, parse_fields(set)
    conversion = vitreous.convert(
        source, target, to=to, format=from_, image_size=size, num_classes=num_classes, overrides=fields, lossy=lossy
    )
    _print(conversion, source, to, stages=check)


def _print(conversion: "Conversion", source: str, to: str, stages: bool) -> None:
    from rich.table import Table

    from vitreous.common.text import console as standard_output

    console = standard_output(soft_wrap=True)  # paths stay whole
    provenance = conversion.provenance
    console.print(f"read {source}: {provenance.get('origin', 'Vitreous')}")

    def print_lines(kind: str, lines: Sequence[str]) -> None:
        for line in lines:
            console.print(f"  {kind}: {line}")

    print_lines("assumed", provenance.get("assumed", ()))
    print_lines("ignored", provenance.get("left_out", ()))
    console.print(f"wrote {conversion.path}: {to}")
    print_lines("computed differently", conversion.losses)
    print_lines("note", conversion.remarks)
    print_lines("not kept", conversion.not_kept)
    if not conversion.differences:
        return
    last = conversion.differences[-1]
    console.print(f"read back: outputs differ by at most {last.largest:.2e} (largest output {last.scale:.3g})")
    if stages:
        table = Table("stage", "largest difference", "mean", "largest value", box=None)
        for one in conversion.differences:
            table.add_row(one.stage, f"{one.largest:.2e}", f"{one.mean:.2e}", f"{one.scale:.3g}")
        console.print(table)
