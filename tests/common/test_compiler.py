"""Functions that PyTorch's compiler calls while it traces others."""

import pytest
import torch

from vitreous.common.compiler import is_exporting, traced_as_constant


def test_a_function_is_marked_as_by_pytorch() -> None:
    marks = vars(torch.compiler.assume_constant_result(lambda: None))
    assert marks.items() <= vars(traced_as_constant(lambda: None)).items()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own code
@pytest.mark.usefixtures("unchecked")
def test_compiled_code_is_not_exported() -> None:
    class Exported(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + is_exporting()

    x = torch.zeros(2)
    torch._dynamo.reset()
    assert not torch.compile(Exported(), backend="eager", fullgraph=True)(x).any()
    for strict in (True, False):
        assert torch.export.export(Exported(), (x,), strict=strict).module()(x).all()
