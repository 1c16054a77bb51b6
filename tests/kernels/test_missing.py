"""The check for fused kernels neither imports the compiler nor runs inside compiled code."""

import subprocess
import sys

import pytest
import torch

from vitreous import kernels


def test_check_is_a_constant_for_the_compiler() -> None:
    marks = vars(torch.compiler.assume_constant_result(lambda: None))
    assert marks.items() <= vars(kernels._unsuitable).items()


@pytest.mark.slow
def test_prediction_does_not_import_the_compiler() -> None:
    program = "import sys, vitreous.cli.prediction_output; assert not {'torch._dynamo', 'sympy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
