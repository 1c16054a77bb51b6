"""The `vitreous extend` command."""

from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from vitreous.common.text import console as standard_output
from vitreous.common.text import listed, plural

SHOWN = 12  # maximum number of unreadable files to print


def extend(
    checkpoint: Annotated[Positional[Path], arg(metavar="CHECKPOINT")],
    *,
    data: str,
    out: Path,
    data_root: Path | None = None,
    batch_size: int = 64,
    device: str = "auto",
    precision: Literal["fp32", "bf16", "auto"] = "auto",
    workers: int | None = None,
) -> None:
    """Add images and classes to a classifier from `train --train-only lda` within seconds, without the old images.

    Example: vitreous extend runs/pets/best --data new-breeds/ --out runs/pets-extended

    Args:
        checkpoint: Checkpoint folder from `train --train-only lda`, such as runs/pets/best, or from `extend`.
        data: The new images; accepts the same values as `train --data`. Images of existing classes refine those
            classes; other class names are added as new classes. If the data has splits, only the train split is used.
        out: Folder for the extended checkpoint.
        data_root: Folder with a local copy of the data set, which is then not downloaded.
        batch_size: Images per batch.
        device: auto, cpu, cuda or mps.
        precision: Compute precision. As in training, auto means bf16 on GPUs that support it, and fp32 otherwise.
        workers: Number of threads that decode images; by default one per core.
    """
    options = {name: value for name, value in locals().items() if name not in ("checkpoint", "data", "out")}
    from vitreous.training.extend import extend as extend_checkpoint

    extension = extend_checkpoint(checkpoint, data, out, **options)
    console = standard_output(soft_wrap=True)  # do not break paths
    images = plural(sum(extension.added.values()), "image")
    console.print(f"added {images} of {listed(extension.added)}, for a total of {extension.count:,} images")
    if extension.new_classes:
        console.print(f"new classes: {listed(extension.new_classes)}")
    for problem in extension.problems[:SHOWN]:
        console.print(f"unreadable: {problem}")
    console.print(f"leave-one-out top-1: {extension.classifier.top1:.4f} ({extension.seconds:.1f} s)")
    console.print(f"wrote {extension.folder}")
