"""The verb `vitreous info`."""

from typing import Annotated

from tyro.conf import Positional, arg

from vitreous.cli.flags import ImageSize


def info(
    name: Annotated[Positional[str], arg(metavar="NAME|CHECKPOINT")] = "",
    *,
    num_classes: int | None = None,
    image_size: ImageSize = (),
    json: bool = False,
) -> None:
    """What a model is made of and what it costs: parameters, operations, tokens, memory.

    Example: vitreous info ViT-B/16 --image-size 384

    Args:
        name: A preset, named as its paper names it, or a checkpoint. Left out: a list of all presets.
        num_classes: Another number of classes than the preset's; 0 for none.
        image_size: Another image size than the preset's.
        json: Print JSON instead of a table.
    """
    from vitreous.cli import model_table as report

    if not name:
        report.print_presets(as_json=json)
        return
    report.print_model(name, num_classes, image_size or None, as_json=json)
