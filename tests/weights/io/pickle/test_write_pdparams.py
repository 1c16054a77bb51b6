"""Python's pickle, which Paddle uses, reads the written `.pdparams` files."""

import pickle
from pathlib import Path

import numpy as np
import torch

from vitreous.weights.io.pickle.read import NAMES, read_pickle, write_pdparams

TENSORS = {
    "a.weight": torch.randn(3, 4),
    "transposed": torch.randn(3, 4).T,
    "number": torch.tensor(3.0),
    "nothing": torch.zeros(0, 2),
    "größe": torch.randn(2, 2, 2, 2),
    "double": torch.randn(2, dtype=torch.float64),
    "half": torch.randn(2).half(),
    "bfloat16": torch.randn(2).bfloat16(),
}


def test_python_reads_a_dict_of_arrays(tmp_path: Path) -> None:
    write_pdparams(TENSORS, tmp_path / "a.pdparams")
    arrays = pickle.loads((tmp_path / "a.pdparams").read_bytes())
    assert arrays.pop(NAMES) == {name: name for name in TENSORS}
    assert list(arrays) == list(TENSORS)
    for name, tensor in TENSORS.items():
        stored = tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor  # as in Paddle files
        assert type(arrays[name]) is np.ndarray
        assert arrays[name].dtype == stored.numpy().dtype
        np.testing.assert_array_equal(arrays[name], stored.numpy())


def test_written_file_is_read_back(tmp_path: Path) -> None:
    write_pdparams(TENSORS, tmp_path / "a.pdparams")
    again = read_pickle(tmp_path / "a.pdparams")
    assert list(again) == list(TENSORS)
    for name, tensor in TENSORS.items():
        assert again[name].dtype == tensor.dtype
        assert torch.equal(again[name], tensor)


def test_numpy_names_are_those_of_numpy_1(tmp_path: Path) -> None:
    write_pdparams(TENSORS, tmp_path / "a.pdparams")
    data = (tmp_path / "a.pdparams").read_bytes()
    assert b"numpy.core.multiarray" in data
    assert b"numpy._core" not in data
