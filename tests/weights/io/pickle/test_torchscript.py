"""TorchScript programs, such as OpenAI's CLIP, are read as state dicts; their code is not run."""

import pickle
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

from handmade_pickles import pickled, torch_zip, view
from vitreous.weights.io.containers import read_file
from vitreous.weights.io.errors import BadCheckpoint

CLASS = pickle.PROTO + b"\x02" + pickle.GLOBAL + b"__torch__.M\nModule\n" + pickle.EMPTY_TUPLE + pickle.NEWOBJ


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(3))
        self.inner = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3))
        self.sizes, self.name, self.register = [1, 2], "net", True
        self.register_buffer("count", torch.tensor(7))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * self.scale


def test_tensors_of_a_program_are_read(tmp_path: Path) -> None:
    net = Net().eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated
        torch.jit.trace(net, torch.zeros(1, 2)).save(tmp_path / "net.pt")
    found = read_file(tmp_path / "net.pt")
    assert set(found) == set(net.state_dict())
    assert all(torch.equal(found[name], tensor) for name, tensor in net.state_dict().items())


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (pickle.BINPUT + b"\x00" + pickle.EMPTY_DICT + b"X\x01\x00\x00\x00a" + b"h\x00" + b"sb.", "64 levels deep"),
        (pickled({"a" * 500: {"b": view()}})[2:-1] + b"b.", "longer than 400 characters"),
        (pickled([1])[2:-1] + b"b.", "sets the state of an object of type ScriptedModule"),
    ],
    ids=["a module in itself", "a long name", "a list as attributes"],
)
def test_hostile_programs_are_rejected(state: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "net.pt").write_bytes(torch_zip(CLASS + state))
    with pytest.raises(BadCheckpoint, match=message):
        read_file(tmp_path / "net.pt")
