"""The `vitreous convert` command."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.table import Table
from tyro.conf import Positional, arg

from vitreous.cli import ImageSize
from vitreous.common.codec import parse_fields
from vitreous.common.text import console as standard_output

if TYPE_CHECKING:
    from vitreous.weights.convert import Conversion
    from vitreous.weights.peers import PeerCheck


def convert(
    source: Annotated[Positional[str], arg(metavar="SRC")],
    target: Annotated[Positional[Path], arg(metavar="DST")],
    *,
    to: str,
    from_: Annotated[str | None, arg(name="from")] = None,
    image_size: ImageSize = (),
    num_classes: int | None = None,
    set: tuple[str, ...] = (),
    part: str | None = None,
    lossy: bool = False,
    check: bool = False,
) -> None:
    """Convert a checkpoint to another library's format, then reload the result and compare the outputs.

    Example: vitreous convert ViT-B_16.npz vit-b16/ --to huggingface

    Args:
        source: File or folder in any supported format, catalog name such as dinov2-s, or hf-hub:owner/name.
        target: Output folder, or a file ending in .safetensors, .pth, .npz or .pdparams.
        to: Target format: vitreous, google, big_vision, timm, huggingface, clip, torchvision, dinov2, dinov3, eva, mae,
            lucidrains, microsoft, paddle or paddlevit.
        from_: Source format; detected by default.
        image_size: New image size. Position embeddings are resampled as in the source library.
        num_classes: Replace the head with a new head for this number of classes; 0 removes the head.
        set: Config fields that cannot be inferred from the weights, as field=JSON, e.g. --set num_heads=4
        part: Part of a file with several models, e.g. state_dict or teacher.backbone.
        lossy: Write the model even if the target library computes slightly different outputs, e.g. with another GELU.
        check: Also run the other library, if it is installed. Print how much its outputs, and each stage of the
            converted model, differ from the original.
    """
    from vitreous.weights.convert import convert as convert_checkpoint

    size, fields = image_size or None, parse_fields(set)
    conversion = convert_checkpoint(
        source,
        target,
        to=to,
        format=from_,
        image_size=size,
        num_classes=num_classes,
        overrides=fields,
        part=part,
        lossy=lossy,
        check=check,
    )
    _print(conversion, source, to, stages=check)


def _print(conversion: "Conversion", source: str, to: str, stages: bool) -> None:
    console = standard_output(soft_wrap=True)  # do not break paths
    provenance = conversion.provenance
    console.print(f"read {source} ({conversion.read_as})")

    def print_lines(kind: str, lines: Sequence[str]) -> None:
        for line in lines:
            console.print(f"  {kind}: {line}")

    if conversion.read_as != "Vitreous":  # the provenance of a Vitreous checkpoint may describe an earlier file
        print_lines("assumed", provenance.get("assumed", ()))
        print_lines("ignored", provenance.get("left_out", ()))
    console.print(f"wrote {conversion.path} in {to} format")
    print_lines("differs", conversion.losses)
    print_lines("note", conversion.remarks)
    print_lines("not preserved", conversion.not_kept)
    last = conversion.differences[-1]
    how = f"outputs differ by at most {last.largest:.2e} (largest output {last.scale:.3g})"
    console.print(f"verified by reading it back with Vitreous: {how}")
    if stages:
        if to != "vitreous":
            console.print(_peer_line(conversion.peer, to))
        table = Table("stage", "largest difference", "mean", "largest value", box=None)
        for stage in conversion.differences:
            table.add_row(stage.stage, f"{stage.largest:.2e}", f"{stage.mean:.2e}", f"{stage.scale:.3g}")
        console.print(table)


def _peer_line(peer: "PeerCheck | None", to: str) -> str:
    if peer is None:
        return f"not verified with another library: no Python package runs {to} files"
    if peer.outputs is None:
        return f"not verified with {peer.library}: {peer.reason}"
    return f"verified with {peer.library}: its outputs differ by at most {peer.outputs.largest:.2e}"
