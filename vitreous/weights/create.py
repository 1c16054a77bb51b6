"""`vitreous.create`: build a preset with random or pretrained weights. torch is imported only to build a model."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from vitreous.common.checks import BadValue, fail
from vitreous.model.presets import configure, preset
from vitreous.weights.catalog import BY_PRESET, CATALOG

if TYPE_CHECKING:
    from vitreous.model.protocol import Model
    from vitreous.model.resnet import ResNet
    from vitreous.model.vit import ViT


@overload
def create(  # type: ignore[overload-overlap] # the only preset that is not a ViT
    name: Literal["BiT-R50x1"],
    num_classes: int | None = None,
    image_size: int | Sequence[int] | None = None,
    overrides: Mapping[str, Any] | None = None,
    pretrained: bool | str = False,
) -> "ResNet": ...
@overload
def create(
    name: str,
    num_classes: int | None = None,
    image_size: int | Sequence[int] | None = None,
    overrides: Mapping[str, Any] | None = None,
    pretrained: bool | str = False,
) -> "ViT": ...
def create(
    name: str,
    num_classes: int | None = None,
    image_size: int | Sequence[int] | None = None,
    overrides: Mapping[str, Any] | None = None,
    pretrained: bool | str = False,
) -> "Model":
    """Build a model from a preset, randomly initialised unless `pretrained`.

    `overrides` sets other config fields, e.g. `{"registers": 4, "position": Rotary2d()}`. `pretrained` is the catalog
    name of weights for this preset, or True for the first such name (see `vitreous info --pretrained`). With
    `pretrained`, the other arguments are passed to `vitreous.load`, and `num_classes` replaces the pretrained head.

    >>> model = create("ViT-Ti/16", num_classes=10, image_size=(224, 320))
    >>> model.config.grid
    (14, 20)
    >>> model = create("DINOv2-S/14", num_classes=10, image_size=224, pretrained="dinov2-s")  # doctest: +SKIP
    """
    if name in CATALOG:
        raise BadValue(f"{name} is the catalog name of pretrained weights, not a preset; use vitreous.load({name!r})")
    if pretrained is False:
        from vitreous.model.build import build

        return build(configure(name, num_classes, image_size, overrides))
    preset(name)  # raises if it does not exist
    known = BY_PRESET.get(name)
    if not known:
        raise BadValue(f"no pretrained weights for {name}; `vitreous info --pretrained` lists all pretrained weights")
    if pretrained is not True and pretrained not in known:
        fail("pretrained", pretrained, f"True or one of {', '.join(map(repr, known))} for {name}")
    from vitreous.weights.load import load

    return load(known[0] if pretrained is True else pretrained, None, image_size, num_classes, overrides)
