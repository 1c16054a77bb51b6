"""The `vitreous calibrate` command."""

import sys
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from vitreous.cli import ImageSize
from vitreous.cli.eval import ProgressDisplay
from vitreous.common.checks import fail
from vitreous.common.text import plural, printable


def calibrate(
    checkpoint: Annotated[Positional[Path], arg(metavar="CHECKPOINT")],
    *,
    data: str,
    split: Literal["val", "test"] = "val",
    image_size: ImageSize = (),
    data_root: Path | None = None,
    val_fraction: float = 0.2,
    seed: int = 0,
    batch_size: int = 64,
    device: str = "auto",
    precision: Literal["fp32", "bf16", "auto"] = "fp32",
    workers: int = 2,
    flip: bool = False,
    out: Path | None = None,
) -> None:
    """Calibrate a classifier's probabilities on images that it was not trained on. `train` does this automatically.

    Example: vitreous calibrate vit.safetensors --data pictures/ --out calibrated

    Args:
        checkpoint: Checkpoint folder, weight file from another library, catalog name, or hf-hub:owner/name.
        data: The data set; accepts the same values as `train --data`.
        split: Split to use.
        image_size: Input size, by default that of the checkpoint. Position embeddings are resampled.
        data_root: Folder with a local copy of the data set, which is then not downloaded.
        val_fraction: Fraction of images to hold out if the data has no validation split. Use the value from training.
        seed: Seed of the held-out split; use the value from training.
        batch_size: Images per batch.
        device: auto, cpu, cuda or mps.
        precision: Compute precision.
        workers: Number of threads that decode images.
        flip: Average the predictions for each image and its mirror image. If you use this, also predict with --flip.
        out: Folder for the calibrated checkpoint. By default, the calibration is added to CHECKPOINT, which is only
            possible for Vitreous checkpoints.
    """
    options = {name: value for name, value in locals().items() if name not in ("checkpoint", "out")}
    from vitreous import evaluation, weights
    from vitreous.weights.native import is_checkpoint, store_calibration

    if out is None and (image_size or not is_checkpoint(checkpoint)):
        fail("out", out, "a folder, unless the checkpoint is a Vitreous checkpoint and --image-size is omitted")
    with ProgressDisplay() as display:
        result = evaluation.calibrate(checkpoint, **options, progress=display.show)
    if result.doubt:
        print(printable(f"vitreous: warning: {result.doubt}"), file=sys.stderr)
    if out is None:
        assert result.model.familiarity is not None
        store_calibration(checkpoint, {"calibration": result.calibration}, result.model.familiarity, result.record)
    else:
        weights.save(result.model, out)
    images = f"{plural(result.calibration.images, 'image')} of the {result.split} split"
    change = f"calibration error {result.ece:.4f} -> {result.ece_calibrated:.4f}"
    print(printable(f"{images}: temperature {result.calibration.temperature:.3f}, {change}"))
    if note := result.calibration.too_few_note():
        print(note)
    print(printable(f"saved to {checkpoint if out is None else out}"))
