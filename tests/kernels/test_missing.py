"""The check for fused kernels neither imports the compiler nor runs inside compiled code."""

import subprocess
import sys

import pytest
import torch

from vitreous import kernels


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own code
@pytest.mark.usefixtures("unchecked")
def test_kernels_are_used_in_compiled_code_but_not_in_exports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_reason", lambda *_: None)  # a GPU

    class Chosen(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + (kernels.missing(torch.device("cuda", 0), torch.bfloat16) is None)

    x = torch.zeros(2)
    torch._dynamo.reset()
    assert torch.compile(Chosen(), backend="eager", fullgraph=True)(x).all()
    for strict in (True, False):
        assert not torch.export.export(Chosen(), (x,), strict=strict).module()(x).any()


@pytest.mark.slow
def test_prediction_does_not_import_the_compiler() -> None:
    program = "import sys, vitreous.cli.prediction_output; assert not {'torch._dynamo', 'sympy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
