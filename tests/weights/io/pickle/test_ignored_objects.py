"""Objects that training scripts store with the weights are ignored, including their contents."""

import argparse
import collections
import datetime
import os
import pathlib
import pickle
import struct
import types
from pathlib import Path
from typing import Any

import pytest
import torch

import vitreous
from handmade_pickles import Call, Outside, array, check_rejected, doubled, little_memory, pickled, torch_zip, view
from vitreous.weights.io.errors import BadCheckpoint
from vitreous.weights.io.pickle.read import read_pickle
from vitreous.weights.io.pickle.tensors import Ignored

NAMESPACE = b"cargparse\nNamespace\n"
CANARY = "touch canary"
IGNORED = {
    "argparse.Namespace": argparse.Namespace(lr=1, path=Path("x"), inner=argparse.Namespace()),
    "types.SimpleNamespace": types.SimpleNamespace(lr=1),
    "pathlib.PosixPath": pathlib.PosixPath("/a/b"),
    "pathlib.PureWindowsPath": pathlib.PureWindowsPath("C:/a"),
    "torch.device": torch.device("cuda", 1),
    "torch.torch_version.TorchVersion": torch.__version__,
    "datetime.datetime": datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC),
    "datetime.timedelta": datetime.timedelta(seconds=3),
    "builtins.set": {1, 2},
    "builtins.frozenset": frozenset({"a"}),
    "builtins.float": float,
}
# Pickles of packages that are not installed.
BY_HAND = {
    "lightning.pytorch.utilities.parsing.AttributeDict": b")\x81X\1\0\0\0aK\1s",
    "pytorch_lightning.utilities.parsing.AttributeDict": b")\x81(X\1\0\0\0aK\1X\1\0\0\0bK\2u",
    "yacs.config.CfgNode": b")\x81X\1\0\0\0aK\1s}X\2\0\0\0__Nsb",
    "omegaconf.dictconfig.DictConfig": b")\x81}X\1\0\0\0actyping\nAny\nsb",
    "pathlib._local.PosixPath": b"X\1\0\0\0a\x85R",
}
HOSTILE = {
    "a namespace as a key": (b"\x80\2}" + NAMESPACE + b")\x81Ns.", "dict key of type Ignored"),
    "a class as a key": (b"\x80\2}" + NAMESPACE + b"Ns.", "dict key of type IgnoredClass"),
    "a call of a namespace": (b"\x80\2" + NAMESPACE + b")\x81)R.", "calls an object of type Ignored"),
    "an object of a namespace": (b"\x80\2" + NAMESPACE + b")\x81)\x81.", "uses the pickle opcode NEWOBJ"),
    "an object of a function": (b"\x80\2ctorch\nSize\n)\x81.", "uses the pickle opcode NEWOBJ"),
    "an object of text": (b"\x80\2X\1\0\0\0a)\x81.", "uses the pickle opcode NEWOBJ"),
    "an object of nothing": (b"\x80\2)\x81.", "is not a complete pickle"),
    "a state for a class": (b"\x80\2" + NAMESPACE + b"}b.", "sets the state of an object of type IgnoredClass"),
    "items of a class": (b"\x80\2" + NAMESPACE + b"NNs.", "sets items .* IgnoredClass"),
    "a list in a namespace": (b"\x80\2" + NAMESPACE + b")\x81Na.", "appends to .* Ignored"),
    "a tensor of a namespace": (
        pickled(Call(torch._utils._rebuild_parameter, argparse.Namespace(), False, {})),
        "calls torch._utils._rebuild_parameter with unsupported arguments",
    ),
    "a storage of a namespace": (pickled(view(elements=argparse.Namespace())), "refers to"),
    "a reference to a namespace": (pickled(Outside(argparse.Namespace())), "refers to"),
    "an array of a namespace": (pickled(array(data=argparse.Namespace())), "whose data has type Ignored"),
    "an attribute of a namespace": (pickled(Call(getattr, argparse.Namespace, "x")), "contains builtins.getattr"),
    "a name inside a class": (
        b"\x80\4\x8c\x08argparse\x8c\x12Namespace.__init__\x93.",
        "contains argparse.Namespace.__init",
    ),
    "another name of its module": (pickled(argparse.ArgumentParser.__init__, 4), "contains argparse.ArgumentParser"),
    "a set as protocol 4 has it": (pickle.dumps({1}, 4), "uses the pickle opcode EMPTY_SET"),
    "a dict of what is no type": (pickled(collections.defaultdict(os.getcwd)), "contains posix.getcwd"),
    "a count of no dict": (
        pickled(Call(collections.Counter, ["a"])),
        "calls collections.Counter with unsupported arguments",
    ),
    "a command in its state": (pickled(argparse.Namespace(x=Call(os.system, CANARY))), "contains posix.system"),
    "a command as its argument": (pickled(Call(pathlib.PosixPath, Call(os.system, CANARY))), "contains posix.system"),
    "tensors in its state": (
        pickled(argparse.Namespace(x=view(shape=(10**12,), stride=(0,)))),
        "bytes of tensors",
    ),
    "a storage that is not there": (
        pickled(argparse.Namespace(x=Outside("storage", torch.FloatStorage, "9", "cpu", 2**40))),
        "has 0 bytes for the storage 9",
    ),
    "namespaces without end": (
        b"\x80\2](" + NAMESPACE + b"q\0" + b"h\0)\x81" * 200_000 + b"e.",
        "a pickle with more than 500,000 opcodes",
    ),
    "one namespace again and again": (
        doubled(NAMESPACE + b")\x81", lambda last: b"](" + last * 2 + b"e") + b".",
        "has more than 500,000 values",
    ),
}


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("name", IGNORED)
def test_objects_stored_with_the_weights_are_ignored(tmp_path: Path, name: str, protocol: int) -> None:
    torch.save({"a": IGNORED[name], "w": torch.arange(3)}, tmp_path / "x.pth", pickle_protocol=protocol)
    found = read_pickle(tmp_path / "x.pth")
    assert found["a"] == Ignored(name)
    assert found["w"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("name", BY_HAND)
def test_settings_of_other_packages_are_ignored(tmp_path: Path, name: str) -> None:
    module, _, own = name.rpartition(".")
    (tmp_path / "x").write_bytes(torch_zip(b"\x80\2c" + f"{module}\n{own}\n".encode() + BY_HAND[name] + b"."))
    assert read_pickle(tmp_path / "x") == Ignored(name.replace("._local", ""))


def test_dict_subclasses_become_dicts(tmp_path: Path) -> None:
    scheduler = collections.Counter([30, 60, 60])
    by_name = collections.defaultdict(list, {"a": [1], "w": torch.ones(2)})
    torch.save({"milestones": scheduler, "by name": by_name}, tmp_path / "x.pth")
    found = read_pickle(tmp_path / "x.pth")
    assert found["milestones"] == {30: 1, 60: 2}
    assert found["by name"]["w"].tolist() == [1, 1]


def test_contents_of_ignored_objects_are_dropped(tmp_path: Path) -> None:
    """Test a namespace that contains itself, and one whose state has 2 ** 100 values."""
    itself = b"\x80\2" + NAMESPACE + b")\x81q\0}X\1\0\0\0ah\0sb."
    laughs = doubled(b"]", lambda last: b"](" + last * 2 + b"e")
    laughs += b"q\0" + NAMESPACE + b")\x81h\0b."
    for data in (itself, laughs):
        (tmp_path / "x").write_bytes(torch_zip(data))
        with little_memory():
            assert read_pickle(tmp_path / "x") == Ignored("argparse.Namespace")


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", HOSTILE)
def test_ignored_objects_do_not_bypass_the_checks(tmp_path: Path, name: str) -> None:
    check_rejected(tmp_path, torch_zip(HOSTILE[name][0]), HOSTILE[name][1])


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_deep_state_is_freed_without_recursion(tmp_path: Path) -> None:
    deep = b"\x80\2" + NAMESPACE + b")\x81" + b")" + b"\x85" * 400_000 + b"b."
    (tmp_path / "x").write_bytes(torch_zip(deep))
    assert read_pickle(tmp_path / "x") == Ignored("argparse.Namespace")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (argparse.Namespace(), r"dict of tensors, got argparse\.Namespace"),
        (
            {"model": argparse.Namespace()},
            r"no tensors under a known key; found model \(argparse\.Namespace\)",
        ),
    ],
)
def test_error_names_ignored_object_instead_of_tensors(tmp_path: Path, value: Any, message: str) -> None:
    torch.save(value, tmp_path / "x.pth")
    with pytest.raises(BadCheckpoint, match=message):
        vitreous.load(tmp_path / "x.pth")


def test_sizes_in_ignored_state_are_checked(tmp_path: Path) -> None:
    data = b"\x80\2" + NAMESPACE + b")\x81X" + struct.pack("<I", 2**31) + b"b."
    (tmp_path / "x").write_bytes(torch_zip(data))
    with little_memory(), pytest.raises(BadCheckpoint, match="truncated: 2,147,483,648 more bytes"):
        read_pickle(tmp_path / "x")
