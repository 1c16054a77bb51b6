"""Base class of all model configs. This module does not import torch."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, get_args, get_type_hints

from vitreous.common.checks import BadValue, Size, check_kind, check_whole, fail, suggestion
from vitreous.common.codec import decode
from vitreous.model.calibration import Calibration
from vitreous.model.options import (
    GlobalAverage,
    MultiLabel,
    Numbers,
    OutputConfig,
    PoolConfig,
    Preprocessing,
    SingleLabel,
)

# Limits far above any published model. Larger values are probably mistakes and would exhaust memory.
MAX_WIDTH, MAX_DEPTH, MAX_SIDE, MAX_CLASSES, MAX_TOKENS = 2**16, 1024, 2**16, 10**7, 2**20
MAX_PARAMETERS = 10**11  # the largest published ViT has 22 billion


Task = Literal["classify", "multilabel", "regress", "embed", "segment"]


@dataclass(frozen=True)
class OutputKind:
    """Kind of model output. `python` and `command` are examples for model cards; {source} stands for the checkpoint."""

    task: Task
    pipeline_tag: str  # name of the task on the Hugging Face Hub; empty if it has none
    output: str  # description; {classes} is the number of classes
    python: str
    command: str
    per_pixel: bool = False  # True if each pixel has its own output
    classes: bool = True  # True if the outputs are classes with probabilities

    @property
    def predictor(self) -> str:
        """Name of the class that predicts this kind of output."""
        return self.python.partition("(")[0]


CLASS_SCORES = OutputKind(
    task="classify",
    pipeline_tag="image-classification",
    output="{classes:,} classes",
    python='Predictor(model)(["image.jpg"])',
    command="predict {source} image.jpg",
)
LABELS = OutputKind(
    task="multilabel",
    pipeline_tag="image-classification",
    output="any of {classes:,} classes",
    python='MultiLabelPredictor(model)(["image.jpg"])',
    command="predict {source} image.jpg",
)
NUMBERS = OutputKind(
    task="regress",
    pipeline_tag="",
    output="numbers: {classes:,}",
    python='RegressPredictor(model)(["image.jpg"])',
    command="predict {source} image.jpg",
    classes=False,
)
FEATURES = OutputKind(
    task="embed",
    pipeline_tag="image-feature-extraction",
    output="features (no classification head)",
    python='Predictor(model).embed(["image.jpg"])',
    command="embed {source} image.jpg --out features.parquet",
    classes=False,
)
MASKS = OutputKind(
    task="segment",
    pipeline_tag="image-segmentation",
    output="{classes:,} classes per pixel",
    python='SegmentPredictor(model)(["image.jpg"])[0].mask',
    command="predict {source} image.jpg --out segmented/",
    per_pixel=True,
)
C = TypeVar("C", bound="ModelConfig")


class AttentionShape(NamedTuple):
    """Shape of an attention layer."""

    heads: int
    tokens: int
    keys: int  # tokens that each token attends to: all tokens, or those of its window
    grid: Size
    stride: Size  # height and width of a patch in image pixels
    width: int


@dataclass(frozen=True)
class ModelConfig:
    """Everything needed to rebuild a model, preprocess an image and name the classes.

    Each model family has a frozen dataclass that inherits from this class. Code outside `vitreous.model` uses only the
    members below. Each family must define the members under TYPE_CHECKING, as fields or properties. The defaults of
    the other members are those of a convolutional classifier.
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
            """Architecture name, used as a tag on model cards."""

        @property
        def summary(self) -> str:
            """One-line description of the architecture, starting with the backbone."""

        @property
        def num_layers(self) -> int: ...
        @property
        def feature_width(self) -> int:
            """Length of the pooled feature vector."""

        @property
        def patch_stride(self) -> Size:
            """Height and width, in image pixels, of a patch in `Model.features`."""

    @property
    def pyramid_widths(self) -> tuple[int, ...]:
        """Widths of the feature maps of `Model.pyramid`, finest first."""
        return (self.feature_width,)

    @property
    def resampled_fields(self) -> frozenset[str]:
        """Fields that `Model.resampled` can change, because the weights can be resampled."""
        return frozenset()

    @property
    def output_kind(self) -> OutputKind:
        """Kind of output: classes, numbers, pooled features, or classes per pixel."""
        if not self.num_classes:
            return FEATURES
        match self.output:
            case SingleLabel():
                return CLASS_SCORES
            case MultiLabel():
                return LABELS
            case Numbers():
                return NUMBERS

    @property
    def output(self) -> OutputConfig:
        """Meaning of the outputs. Models of a family without this field have one class per image."""
        return SingleLabel()

    @property
    def task(self) -> Task:
        return self.output_kind.task

    @property
    def loss_bytes(self) -> int:
        """Memory per image, in bytes, that the training loss needs in addition to the activations; 0 if negligible."""
        return 0

    @property
    def backbone(self) -> "ModelConfig":
        """Config of the feature extractor: the encoder's config for a segmenter, otherwise this config."""
        return self

    @property
    def grid(self) -> Size:
        """Rows and columns of the patch grid."""
        return self.grid_for(self.image_size)

    @property
    def pool(self) -> PoolConfig:
        return GlobalAverage()

    @property
    def calibration(self) -> Calibration | None:
        """Calibration of the class probabilities, or None if the model has not been calibrated."""
        return None

    @property
    def can_be_calibrated(self) -> bool:
        """True if the config has a field for the calibration."""
        return any(field.name == "calibration" for field in dataclasses.fields(self))

    @property
    def class_token(self) -> bool:
        return False

    @property
    def distillation_token(self) -> bool:
        return False

    @property
    def prefix_names(self) -> tuple[str, ...]:
        """Names of the tokens before the patches, in order."""
        return ()

    @property
    def num_prefix_tokens(self) -> int:
        return len(self.prefix_names)

    @property
    def position_name(self) -> str:
        """Short name of the position embedding."""
        return "none"

    @property
    def num_heads(self) -> int:
        """Attention heads per layer, or 0 for a model without attention."""
        return 0

    @property
    def num_tokens(self) -> int:
        """Sequence length of global self-attention, or 0 for a model without it."""
        return 0

    @property
    def attention_shapes(self) -> tuple[AttentionShape, ...]:
        """Shapes of the attention layers; empty for a model without attention maps."""
        return ()

    @property
    def has_attention(self) -> bool:
        """True if the model has attention maps."""
        return bool(self.attention_shapes)

    @property
    def map_grid(self) -> Size:
        """Rows and columns of an explanation map: the grid of the first attention layer, where patches are smallest."""
        return self.attention_shapes[0].grid if self.has_attention else self.grid

    @property
    def position_grid(self) -> Size:
        """Rows and columns of the positions that the model compares: a window, or the whole grid."""
        return self.map_grid

    @property
    def map_stride(self) -> Size:
        """Height and width, in image pixels, of a value of an explanation map."""
        return self.attention_shapes[0].stride if self.has_attention else self.patch_stride

    @property
    def can_drop_patches(self) -> bool:
        """True if the encoder can process a subset of the patches, which masked pre-training needs."""
        return False

    @property
    def same_steps_for_all_sizes(self) -> bool:
        """True if the operations of the model do not depend on the image size, so that one exported file serves all."""
        return True

    def details(self) -> list[tuple[str, str]]:
        """Return (name, text) rows that describe the architecture in `vitreous info`."""
        return []

    def grid_for(self, image_size: Size) -> Size:
        """Return the patch grid for an image size, or raise ValueError if the size is not supported."""
        stride = self.patch_stride
        return (-(-image_size[0] // stride[0]), -(-image_size[1] // stride[1]))

    def resized(self: C, image_size: Size) -> C:
        config = self if image_size == self.image_size else self.uncalibrated()
        return dataclasses.replace(config, image_size=image_size)  # type: ignore[call-arg]

    def with_classes(self: C, num_classes: int, labels: tuple[str, ...] = ()) -> C:
        """Replace the classes. New outputs stand for one class per image."""
        fields = {"num_classes": num_classes, "labels": labels, **self.output_field(SingleLabel())}
        return dataclasses.replace(self.uncalibrated(), **fields)

    def output_field(self, output: OutputConfig) -> dict[str, Any]:
        """Return the field that sets the meaning of the outputs, or an empty dictionary if it is already set."""
        if output == self.output:
            return {}
        if all(field.name != "output" for field in dataclasses.fields(self)):
            fail("task", type(output).__name__, f"classification for a {type(self).__name__}")
        return {"output": output}

    def uncalibrated(self: C) -> C:
        """Remove the calibration, which is valid only for the weights, classes and image size used to fit it."""
        return self if self.calibration is None else dataclasses.replace(self, calibration=None)  # type: ignore[call-arg]

    def override(self: C, fields: Mapping[str, Any]) -> C:
        """Return a copy with new field values (objects or JSON). For a segmenter, replace the encoder's fields."""
        hints, known = get_type_hints(type(self)), [field.name for field in dataclasses.fields(self)]
        for name in fields:
            if name not in known:
                hint = suggestion(name, known) or f"; its fields are {', '.join(known)}"
                raise BadValue(f"{name!r} is not a field of {type(self).__name__}{hint}")
        return dataclasses.replace(self, **{name: decode(hints[name], value, name) for name, value in fields.items()})


def check_classes(num_classes: object, labels: object) -> None:
    check_whole("num_classes", num_classes, 0, MAX_CLASSES)
    if not isinstance(labels, tuple) or not all(isinstance(label, str) for label in labels):
        fail("labels", labels, "a tuple of strings")
    if labels and len(labels) != num_classes:
        raise ValueError(f"labels must be empty or contain {num_classes} names (num_classes), got {len(labels)}")


def check_output(output: object, num_classes: int) -> None:
    check_kind("output", output, get_args(OutputConfig))
    lengths = {f"output.{name}": len(values) for name, values in vars(output).items()}
    for name, length in lengths.items():
        if length != num_classes and not (isinstance(output, MultiLabel) and length == 0):
            fail(name, f"a tuple of {length} numbers", f"one number for each of the {num_classes} outputs")


def check_budget(parameters: int) -> None:
    if parameters > MAX_PARAMETERS:
        raise ValueError(
            f"the model would have about {parameters:.1e} parameters; the maximum is {MAX_PARAMETERS:.0e}. "
            "Check width, depth, mlp_width, patch_size, image_size and num_classes"
        )
