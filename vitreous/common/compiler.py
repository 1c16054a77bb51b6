"""Helpers for code that torch.compile and torch.export trace."""

from collections.abc import Callable
from typing import TypeVar

import torch

F = TypeVar("F", bound=Callable[..., object])


def traced_as_constant(function: F) -> F:
    """Call a function while its caller is traced, and trace its result as a constant.

    torch.compiler.assume_constant_result does the same, but it imports the compiler, which makes every start slower.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@traced_as_constant
def is_exporting() -> bool:
    """Return True inside torch.export. PyTorch 2.11 traces torch.compiler.is_exporting as True in torch.compile too."""
    return torch.compiler.is_exporting()
