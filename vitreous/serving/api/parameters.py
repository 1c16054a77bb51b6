"""Parameters of requests, and checks of their values before any computation."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import Path, Query
from pydantic import BaseModel, Field

from vitreous.common.checks import BadValue
from vitreous.explanation.result import class_index
from vitreous.serving.errors import ApiError
from vitreous.serving.inspect.session import InspectedModel

MAX_ANSWER_BYTES = 64 * 2**20

Model = Annotated[str | None, Query(description="Id of a model at /v1/model; by default the first.", max_length=200)]
Id = Annotated[str, Path(description="Id of an uploaded image: 32 hexadecimal digits.", max_length=64)]
Layer = Annotated[int, Path(ge=0, lt=2**16)]
AnyLayer = Annotated[int | None, Query(ge=0, lt=2**16, description="By default the last layer.")]
Target = Annotated[
    str | None, Query(max_length=200, description="A class, by label or index; by default the most probable.")
]


class Erased(BaseModel):
    """Patches to fill with the image's mean colour, and classes whose probability is returned."""

    patches: list[Annotated[int, Field(ge=0)]] = Field(default=[], max_length=2**16, examples=[[0, 1, 14]])
    classes: list[Annotated[int, Field(ge=0)]] = Field(default=[], max_length=1000, examples=[[0]])


def layer_of(model: InspectedModel, layer: int | None) -> int:
    depth = model.vit.config.depth
    if layer is None:
        return depth - 1
    if layer >= depth:
        raise ApiError(422, "bad_parameter", f"layer is {layer}, but must be an integer from 0 to {depth - 1}")
    return layer


def target_of(model: InspectedModel, name: str | None) -> int | None:
    """Index of the class; None for the most probable, also if the parameter is empty."""
    try:
        return class_index(model.classifier.config, name or None, "target")
    except BadValue as error:
        raise ApiError(422, "bad_parameter", str(error)) from None


def check_below(name: str, numbers: Sequence[int], count: int) -> None:
    for number in numbers:
        if number >= count:
            message = f"{name} contains {number}, but must contain integers from 0 to {count - 1}"
            raise ApiError(422, "bad_parameter", message)


def check_attention(model: InspectedModel) -> None:
    """Reject a model whose attention weights of one layer are too large to send or to keep for gradients."""
    config = model.vit.config
    check_size(config.num_heads * config.num_tokens**2, "the attention of a layer", config.num_tokens)


def check_size(size: int, what: str, tokens: int) -> None:
    if size > MAX_ANSWER_BYTES:
        message = f"{what} has {size:,} bytes for {tokens:,} tokens, but at most {MAX_ANSWER_BYTES:,} are sent"
        raise ApiError(413, "too_many_tokens", f"{message}: serve the model with a smaller --image-size")
