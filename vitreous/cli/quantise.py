"""The `vitreous quantise` command."""

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from vitreous.cli import ImageSize
from vitreous.common.checks import BadValue, fail
from vitreous.common.text import plural, printable


def quantise(
    checkpoint: Annotated[Positional[Path], arg(metavar="CHECKPOINT")],
    *,
    data: str,
    image_size: ImageSize = (),
    max_images: int = 100,
    out: Path | None = None,
) -> None:
    """Add int8 scales to a checkpoint, so that `--precision int8` works with it on a CPU. The weights do not change.

    Example: vitreous quantise runs/first/best --data pictures/

    Args:
        checkpoint: Checkpoint folder, weight file from another library, catalog name, or hf-hub:owner/name.
        data: The data set; accepts the same values as `train --data`. The scales are fitted on training images.
        image_size: Input size, by default that of the checkpoint. Position embeddings are resampled.
        max_images: Maximum number of validation images to compare with float32.
        out: Folder for a checkpoint with the scales. By default, they are added to CHECKPOINT, which is only possible
            for Vitreous checkpoints.
    """
    from vitreous import weights
    from vitreous.exporting.quantise_checkpoint import quantise as quantise_checkpoint
    from vitreous.weights.native import is_checkpoint, store_int8_scales

    if out is None and image_size:
        fail("image_size", image_size, "omitted without --out, because the scales are for the checkpoint's image size")
    if out is None and not is_checkpoint(checkpoint):
        raise BadValue(f"{checkpoint} is not a folder with a Vitreous checkpoint; pass --out FOLDER to write one")
    result = quantise_checkpoint(checkpoint, data, image_size=image_size or None, max_images=max_images)
    if out is None:
        store_int8_scales(checkpoint, result.scales)
    else:
        weights.save(result.model, out)
    images, agreement = plural(result.check.images, "image"), result.check.agreement
    same = "" if agreement is None else f", same labels as in float32: {agreement:.1%} of {images}"
    print(printable(f"{plural(len(result.scales.layers), 'layer')} in int8{same}"))
    print(printable(f"saved to {checkpoint if out is None else out}"))
