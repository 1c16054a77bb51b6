"""Traces modules with torch.export."""

import contextlib
import copy
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import jaxtyping
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.export import ExportedProgram

M = TypeVar("M", bound=nn.Module)


class Program(NamedTuple):
    """Traced model with the names of its inputs and outputs."""

    program: ExportedProgram
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class PlainGroupNorm(nn.Module):
    """nn.GroupNorm in elementary operations, because some runtimes lose precision where the variance is small."""

    def __init__(self, norm: nn.GroupNorm):
        super().__init__()
        self.groups, self.eps, self.weight, self.bias = norm.num_groups, norm.eps, norm.weight, norm.bias

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        values = x.reshape(x.shape[0], self.groups, -1)
        values = values - values.mean(dim=2, keepdim=True)
        values = values / (values.square().mean(dim=2, keepdim=True) + self.eps).sqrt()
        return values.reshape(x.shape) * self.weight[:, None, None] + self.bias[:, None, None]


def traced(module: nn.Module, inputs: dict[str, Tensor], dynamic: tuple[Any, ...], outputs: Sequence[str]) -> Program:
    """Trace a module. `dynamic`: the dynamic axes of each input; see `torch.export.export`."""
    with torch.no_grad(), quiet(), unchecked():
        program = torch.export.export(module.eval(), tuple(inputs.values()), dynamic_shapes=dynamic, strict=False)
    return Program(program, tuple(inputs), tuple(outputs))


def exportable(model: M, dtype: torch.dtype) -> M:
    """Return a copy of a model on the CPU, without modules that runtimes compute inaccurately."""
    # Frozen, because the exporters trace again with gradients, which another attention kernel would compute.
    model = copy.deepcopy(model).to("cpu", dtype).eval().requires_grad_(False)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.GroupNorm):
                setattr(parent, name, PlainGroupNorm(child))
    return model


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hide the deprecation warnings that torch's exporters cause in torch itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


@contextlib.contextmanager
def unchecked() -> Iterator[None]:
    """Suspend jaxtyping's runtime checks, which reject the symbolic sizes of a traced model."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)
