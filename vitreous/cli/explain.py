"""The `vitreous explain` command."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.table import Table
from tyro.conf import Positional, arg

from vitreous.cli import ImageSize
from vitreous.common.text import SafeConsole
from vitreous.common.text import console as standard_output
from vitreous.explanation import Method

if TYPE_CHECKING:
    from vitreous.explanation.result import Explanation


def explain(
    checkpoint: Annotated[Positional[Path], arg(metavar="CHECKPOINT")],
    image: Annotated[Positional[str], arg(metavar="IMAGE|none")],
    *,
    out: Path,
    class_: Annotated[str | None, arg(name="class", metavar="LABEL|INDEX")] = None,
    methods: tuple[Method, ...] = (),
    layers: Annotated[tuple[int, ...], arg(metavar="LAYER ...")] = (),
    heads: Annotated[tuple[int, ...], arg(metavar="HEAD ...")] = (),
    query: Annotated[tuple[int, ...], arg(metavar="ROW COLUMN")] = (),
    image_size: ImageSize = (),
    batch_size: int = 32,
    device: str = "auto",
) -> None:
    """Explain a model's prediction for an image with figures and an HTML report.

    Example: vitreous explain runs/first/best cat.jpg --out explained/

    Args:
        checkpoint: Checkpoint folder such as runs/first/best, weight file from another library, catalog name such as
            dinov2-s, or hf-hub:owner/name.
        image: Image file, or `none` for the figures that need no image (positions and filters).
        out: Folder for the figures.
        class_: Class to explain, by label or index. By default the most probable class.
        methods: Figures to create. By default all that the checkpoint supports. Occlusion and faithfulness are slow.
        layers: Layers to show, counted from 0; negative numbers count from the end. By default all.
        heads: Heads to show in the overview, counted from 0. By default all.
        query: Patch whose attention and similarity are shown. By default, the attention of the class token and the
            similarity to the most important patch.
        image_size: Input size, by default that of the checkpoint. Position embeddings are resampled.
        batch_size: Images per batch for occlusion and faithfulness.
        device: auto, cpu, cuda or mps.
    """
    from vitreous.explanation.explain_image import explain as explain_image

    command = shlex.join(["vitreous", *sys.argv[1:]])
    with SafeConsole(stderr=True).status("explaining ...") as status:  # only on a terminal
        result = explain_image(
            checkpoint, None if image == "none" else image, out=out, target=class_, methods=methods, layers=layers,
            heads=heads, query=query, image_size=image_size, batch_size=batch_size, device=device, command=command,
            begin=lambda method: status.update(f"{method} ..."),
        )  # fmt: skip
    _print(result)


def _print(result: "Explanation") -> None:
    console = standard_output()
    if result.predictions:
        table = Table("class", "probability", box=None)
        for label in result.predictions:
            mark = "  <- explained" if label.index == result.target else ""
            table.add_row(label.label, f"{label.probability:.4f}{mark}")
        console.print(table)
        if result.target not in [label.index for label in result.predictions]:
            console.print(f"explained class: {result.label}")
    if result.faithfulness:
        table = Table("map", "deletion (lower is better)", "insertion (higher is better)", box=None)
        for key, test in result.faithfulness.items():
            table.add_row(key, f"{test.deletion:.3f}", f"{test.insertion:.3f}")
        console.print()
        console.print(table)
    if result.skipped:
        console.print()
        for reason, methods in result.skipped_by_reason().items():
            console.print(f"skipped: {', '.join(methods)} ({reason})", soft_wrap=True)
    console.print()
    for path in result.paths:
        console.print(f"wrote {path}", soft_wrap=True)
