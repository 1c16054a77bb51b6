"""The checks of types and shapes under pytest reject every kind of mismatch."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from beartype.roar import BeartypeCallHintViolation
from jaxtyping import Float
from torch import Tensor

from typecheck import jaxtyped
from vitreous.data.augment.batch import beta

checked = jaxtyped(typechecker=None)


@checked
def product(x: Float[Tensor, "b n"], y: Float[Tensor, "b m"]) -> Float[Tensor, "b n m"]:
    return x[:, :, None] * y[:, None, :] if len(y) else x


@checked
def zeros(size: tuple[int, int], rows: int) -> Float[Tensor, "{size[0]} {size[1]}"]:
    return torch.zeros(rows, size[1])


@checked
@dataclass
class Point:
    x: float
    parent: "Point | None" = None


@checked
def first(points: "list[Point]", unknown: "Missing" = 3) -> int:  # type: ignore[name-defined]
    return points[0].x  # type: ignore[return-value]


def test_valid_calls_are_not_changed() -> None:
    assert product(torch.ones(2, 3), y=torch.ones(2, 4)).shape == (2, 3, 4)
    assert product(torch.ones(5, 1), torch.ones(5, 1)).shape == (5, 1, 1)  # letters belong to one call
    assert zeros((2, 3), rows=2).shape == (2, 3)
    assert first([Point(3)], "anything") == 3  # an int is a float


MISMATCHES: list[tuple[Any, Any]] = [
    (product, (torch.ones(2, 3), torch.ones(5, 4))),  # two sizes of one letter
    (product, (torch.ones(2, 3), torch.ones(4))),
    (product, (torch.ones(2, 3), torch.ones(2, 4).int())),
    (product, (torch.ones(0, 3), torch.ones(0, 4))),  # the result
    (zeros, ((2, 3), 4)),
    (Point, ("1",)),
    (first, ([3],)),
    (first, ([Point(0.5)],)),
]


@pytest.mark.parametrize(("function", "arguments"), MISMATCHES)
def test_mismatches_are_rejected(function: Any, arguments: Any) -> None:
    with pytest.raises(BeartypeCallHintViolation):
        function(*arguments)


def test_checks_can_be_disabled(unchecked: None) -> None:
    assert Point("1").x == "1"  # type: ignore[arg-type, comparison-overlap]
    assert product(torch.ones(0, 3), torch.ones(0, 4)).shape == (0, 3)


def test_the_package_is_checked() -> None:
    with pytest.raises(BeartypeCallHintViolation):
        beta(torch.zeros(3, 1), 1.0)
