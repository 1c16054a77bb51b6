"""What may be asked for, and whether it is there: found out before any work is begun."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import Path, Query
from pydantic import BaseModel, Field

from vitreous.common.checks import BadValue
from vitreous.explanation.result import class_index
from vitreous.serving.errors import ApiError
from vitreous.serving.inspect.session import InspectedModel

LARGEST = 64 * 2**20  # bytes of one answer

Model = Annotated[str | None, Query(description="A model of those at /v1/model; left out, the first.", max_length=200)]
Id = Annotated[str, Path(description="Of a picture that was sent: 32 hexadecimal digits.", max_length=64)]
Layer = Annotated[int, Path(ge=0, lt=2**16)]
AnyLayer = Annotated[int | None, Query(ge=0, lt=2**16, description="Left out, the last.")]
Target = Annotated[
    str | None, Query(max_length=200, description="A class, by label or number; left out or empty, the likeliest.")
]


class Erased(BaseModel):
    """Patches that are painted over with the picture's mean colour, and classes whose probability is asked for."""

    patches: list[Annotated[int, Field(ge=0)]] = Field(default=[], max_length=2**16, examples=[[0, 1, 14]])
    classes: list[Annotated[int, Field(ge=0)]] = Field(default=[], max_length=1000, examples=[[0]])


def layer_of(model: InspectedModel, layer: int | None) -> int:
    depth = model.vit.config.depth
    if layer is None:
        return depth - 1
    if layer >= depth:
        raise ApiError(422, "bad_parameter", f"layer is {layer}, but must be a whole number from 0 to {depth - 1}")
    return layer


def target_of(model: InspectedModel, name: str | None) -> int | None:
    """The class that is meant; none for the likeliest, which an empty parameter asks for as well."""
    try:
        return class_index(model.classifier.config, name or None, "target")
    except BadValue as error:
        raise ApiError(422, "bad_parameter", str(error)) from None


def check_below(name: str, numbers: Sequence[int], count: int) -> None:
    for number in numbers:
        if number >= count:
            said = f"{name} has {number}, but must have whole numbers from 0 to {count - 1}"
            raise ApiError(422, "bad_parameter", said)


def check_attention(model: InspectedModel) -> None:
    """A layer's weights, of all heads, must not be more than can be sent, or held while gradients flow through them."""
    config = model.vit.config
    check_size(config.num_heads * config.num_tokens**2, "the attention of a layer", config.num_tokens)


def check_size(size: int, what: str, tokens: int) -> None:
    if size > LARGEST:
        said = f"{what} would be {size:,} bytes for {tokens:,} tokens, but at most {LARGEST:,} are sent"
        raise ApiError(413, "too_many_tokens", f"{said}: serve the model with a smaller --image-size")
