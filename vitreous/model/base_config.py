"""Members that the configs of all model families share. This file imports no torch."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_type_hints

from vitreous.common.checks import BadValue, Size, check_whole, fail, suggestion
from vitreous.common.codec import decode
from vitreous.model.options import GlobalAverage, PoolConfig, Preprocessing

# Bounds far above every published model: larger values are mistakes that would exhaust the memory before they fail.
MAX_WIDTH, MAX_DEPTH, MAX_SIDE, MAX_CLASSES, MAX_TOKENS = 2**16, 1024, 2**16, 10**7, 2**20
MAX_PARAMETERS = 10**11  # the largest published ViT has 22 billion


Task = Literal["classify", "embed", "segment"]
C = TypeVar("C", bound="ModelConfig")


@dataclass(frozen=True)
class ModelConfig:
    """Everything needed to rebuild a model, preprocess an image and name the classes.

    The config of every model family is a frozen dataclass that inherits from this class. Code outside `vitreous.model`
    uses only the members below. A family must define the first group, as fields or properties; the defaults of the
    others are those of a convolutional classifier.
    """

    if TYPE_CHECKING:

        @property
        def image_size(self) -> Size: ...
        @property
        def channels(self) -> int: ...
        @property
        def num_classes(self) -> int: ...
        @property
        def labels(self) -> tuple[str, ...]: ...
        @property
        def preprocessing(self) -> Preprocessing: ...
        @property
        def family(self) -> str:
            """Name of the architecture, a tag on model cards."""

        @property
        def summary(self) -> str:
            """Architecture in one line, which begins with the summary of the backbone."""

        @property
        def num_layers(self) -> int: ...
        @property
        def feature_width(self) -> int:
            """Length of the pooled features."""

        @property
        def patch_stride(self) -> Size:
            """Height and width in pixels of the area of one patch of `Model.features`."""

    @property
    def task(self) -> Task:
        """Kind of output: one score per class, the pooled features, or one score per class and pixel."""
        return "classify" if self.num_classes else "embed"

    @property
    def backbone(self) -> "ModelConfig":
        """Config of the part that computes features: itself, or the encoder of a segmenter."""
        return self

    @property
    def grid(self) -> Size:
        """Rows and columns of patches."""
        return self.grid_for(self.image_size)

    @property
    def pool(self) -> PoolConfig:
        return GlobalAverage()

    @property
    def distillation_token(self) -> bool:
        return False

    @property
    def num_heads(self) -> int:
        """Attention heads per layer; 0 without attention."""
        return 0

    @property
    def num_tokens(self) -> int:
        """Length of the sequence in which every token attends to every token; 0 without such attention."""
        return 0

    @property
    def has_attention(self) -> bool:
        """True if attention maps can be read: the backbone is a Vision Transformer."""
        return self.num_tokens > 0

    def details(self) -> list[tuple[str, str]]:
        """Rows (name, text) on the architecture, for `vitreous info`."""
        return []

    def grid_for(self, image_size: Size) -> Size:
        """Rows and columns of patches for any image size; ValueError if the model does not accept the size."""
        stride = self.patch_stride
        return (-(-image_size[0] // stride[0]), -(-image_size[1] // stride[1]))

    def resized(self: C, image_size: Size) -> C:
        return dataclasses.replace(self, image_size=image_size)  # type: ignore[call-arg]

    def with_classes(self: C, num_classes: int, labels: tuple[str, ...] = ()) -> C:
        return dataclasses.replace(self, num_classes=num_classes, labels=labels)  # type: ignore[call-arg]

    def override(self: C, fields: Mapping[str, Any]) -> C:
        """Replace fields by values or by their JSON; the fields of a model around a backbone are its backbone's."""
        hints, known = get_type_hints(type(self)), [field.name for field in dataclasses.fields(self)]
        for name in fields:
            if name not in known:
                raise BadValue(f"{name!r} is not a field of {type(self).__name__}{suggestion(name, known)}")
        return dataclasses.replace(self, **{name: decode(hints[name], value, name) for name, value in fields.items()})


def check_classes(num_classes: object, labels: object) -> None:
    check_whole("num_classes", num_classes, 0, MAX_CLASSES)
    if not isinstance(labels, tuple) or not all(isinstance(label, str) for label in labels):
        fail("labels", labels, "a tuple of strings")
    if labels and len(labels) != num_classes:
        raise ValueError(f"labels has {len(labels)} names, but must have num_classes ({num_classes}), or none")


def check_budget(parameters: int) -> None:
    if parameters > MAX_PARAMETERS:
        raise ValueError(
            f"the model would have about {parameters:.1e} parameters, but must have at most {MAX_PARAMETERS:.0e}: "
            "check width, depth, mlp_width, patch_size, image_size and num_classes"
        )
