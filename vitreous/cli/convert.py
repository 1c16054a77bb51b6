"""The verb `vitreous convert`."""

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from vitreous.cli.flags import ImageSize


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
    """A checkpoint in another system's format, read again and compared with what it was.

    Example: vitreous convert ViT-B_16.npz vit-b16/ --to huggingface

    Args:
        source: A file or folder of any format, or hf-hub:owner/name.
        target: A folder, or a file whose ending says of what kind: .safetensors, .pth, .npz, .pdparams.
        to: The format: vitreous, google, big_vision, timm, huggingface, torchvision, dinov2, mae, lucidrains, paddle,
            paddlevit.
        from_: The format of the source, where it is not found out by itself.
        image_size: Another size; positions are resampled in the way of the system they come from.
        num_classes: A fresh head for so many classes; 0 for none.
        set: What the tensors cannot tell, as field=JSON: --set num_heads=4
        lossy: Write it even where the other system computes otherwise with the same weights, such as another GELU.
        check: Report the differences stage by stage.
    """
    from vitreous.cli.convert_command import convert as run
    from vitreous.common.codec import parse_fields

    run(source, target, to, from_, image_size, num_classes, parse_fields(set), lossy, check)
