"""Hostile pickles are rejected with a one-line error, little memory and no side effects."""

import functools
import operator
import os
import pickle
import struct
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from handmade_pickles import (
    FROM_BUFFER,
    RECONSTRUCT,
    Call,
    Outside,
    array,
    check_rejected,
    doubled,
    little_memory,
    pickled,
    repeated,
    torch_old,
    torch_zip,
    view,
)
from vitreous.weights.io.pickle.read import read_pickle

CANARY = "touch canary"
ADVICE = r"\(no code in it was executed; use a file that contains only weights\)"
EXECUTES = {
    "posix.system": Call(os.system, CANARY),
    "builtins.eval": Call(eval, f"__import__('os').system({CANARY!r})"),
    "builtins.getattr": Call(getattr, "os", "system"),
    "functools.partial": functools.partial(os.system, CANARY),
    "operator.attrgetter": operator.attrgetter("system"),
    "numpy.load": Call(np.load, "x.npy", None, True),
    "torch.serialization.load": Call(torch.load, "x.pth"),
    "torch.storage._load_from_bytes": Call(torch.storage._load_from_bytes, pickle.dumps(Call(os.system, CANARY))),
    "torch.nn.modules.linear.Linear": torch.nn.Linear(1, 1),
    "torch._utils._rebuild_sparse_tensor": Call(torch._utils._rebuild_sparse_tensor, 1, 2),
}
OPCODES = {
    "EXT1": b"\x82\1",
    "EXT4": b"\x84\1\0\0\0",
    "PERSID": b"P0\n",
    "NEWOBJ": b"ccollections\nOrderedDict\n)\x81",
    "NEWOBJ_EX": b"ccollections\nOrderedDict\n)}\x92",
    "OBJ": b"(ccollections\nOrderedDict\no",
    "INST": b"(icollections\nOrderedDict\n",
    "DUP": b"N2",
    "NEXT_BUFFER": b"\x97",
    "STRING": b"S'x'\n",
    "EMPTY_SET": b"\x8f",
}
PICKLES = {
    "a call of no function": (b"\x80\2ctorch\nfloat32\n)R.", "calls an object of type dtype"),
    "a call of text": (b"\x80\2X\1\0\0\0a)R.", "calls an object of type str"),
    "a call without arguments": (b"\x80\2ctorch\nSize\nNR.", "NoneType instead of a tuple"),
    "a call with others": (b"\x80\2ctorch\nSize\nN\x85R.", "calls torch.Size with unsupported arguments"),
    "a list of no list": (b"\x80\2}Na.", "appends to .* dict"),
    "items of no dict": (b"\x80\2]NNs.", "sets items .* list"),
    "items of a tensor": (pickled(view())[:-1] + b"NNs.", "sets items .* View"),
    "a state for a list": (b"\x80\2]}b.", "sets the state of an object of type list"),
    "a state for a tensor": (pickled(view())[:-1] + b"}b.", "sets the state of an object of type View"),
    "a second state for an array": (
        pickled(array())[:-1] + b"(K\1K\2\x85NNNtb.",
        "sets the state of an object of type Array",
    ),
    "a function as a value": (b"\x80\2ctorch\nSize\n.", "function torch.Size"),
    "a storage as a value": (
        pickled(Outside("storage", torch.FloatStorage, "0", "cpu", 6)),
        r"an incomplete object \(Elements",
    ),
    "a type as a name": (b"\x80\4NN\x93.", "module or name is not a string"),
    "an unknown reference": (pickled(Outside("module", "x")), r"refers to \('module', 'x'\)"),
    "a reference to a negative storage": (pickled(view(elements=-1)), "refers to"),
    "a reference by number": (b"\x80\2K\1Q.", "refers to 1"),
    "an old view of a storage": (pickled(Outside("storage", torch.FloatStorage, "0", "cpu", 6, (1, 2))), "refers to"),
    "bytes beyond the end": (
        b"\x80\4\x8e" + struct.pack("<Q", 2**62),
        "truncated: 4,611,686,018,427,387,904 more bytes",
    ),
    "text beyond the end": (b"\x80\2X\xff\xff\xff\xffabc", "truncated: 4,294,967,295 more bytes"),
    "text of negative length": (b"\x80\2T\xff\xff\xff\xffabc", "is not a complete pickle"),
    "a frame beyond the end": (b"\x80\4\x95" + struct.pack("<Q", 2**40) + b"N.", "is truncated"),
    "a protocol of the future": (b"\x80\x77N.", "protocol 119"),
    "no text": (b"\x80\2X\1\0\0\0\xff.", "is not a complete pickle"),
    "an empty stack": (b"\x80\2.", "is not a complete pickle"),
    "too few for a tuple": (b"\x80\2N\x86.", "is not a complete pickle"),
    "a memo that was not put": (b"\x80\2h\7.", "is not a complete pickle"),
    "no end": (b"\x80\2N", "is not a complete pickle"),
    "no opcode": (b"\x80\2\xfe.", "is not a complete pickle: it is truncated or invalid at byte 3"),
    "more after the end": (b"\x80\2N.N.", "2 extra bytes after the end"),
    "a billion laughs": (doubled(b"]", lambda last: b"](" + last * 2 + b"e") + b".", "has more than"),
    "a billion tuples as a key": (
        doubled(b")", lambda last: last * 2 + b"\x86") + b"q\0}h\0Ns.",
        "dict key of type tuple",
    ),
    "keys that collide": (pickled({2**61 + i * (2**61 - 1): i for i in range(10_000)}), "dict key of type int"),
    "a list in itself": (b"\x80\2]q\0h\0a.", "nests them more than"),
    "deep nesting": (b"\x80\2" + b"]" * 100_000 + b"a" * 99_999 + b".", "nests them more than"),
    "endless steps": (b"\x80\2]" + b"Na" * 2_000_000 + b".", "more than 500,000 opcodes"),
    "a dict of no pairs": (pickled(Call(OrderedDict, [1])), "a dict .* int"),
    "a storage larger than the file": (pickled(view(elements=10**12)), "has 24 bytes for the storage 0; expected"),
    "a storage of two sizes": (pickled([view(), view(elements=5, shape=(1,), stride=(1,))]), "with both 24 and 20"),
    "a tensor beyond its storage": (pickled(view(shape=(2, 4))), r"shape \[2, 4\] at element 0 .* has 6 elements"),
    "a tensor before its storage": (pickled(view(offset=-1)), "at element -1"),
    "a negative step": (pickled(view(stride=(-3, 1))), "has 6 elements"),
    "a long step": (pickled(view(stride=(2**62, 1))), "has 6 elements"),
    "too few steps": (pickled(view(stride=(3,))), "has 6 elements"),
    "a negative size": (pickled(view(shape=(-2, -3))), r"invalid shape \(-2, -3\)"),
    "a size that overflows": (pickled(view(shape=(2**32, 2**32), stride=(0, 0))), "the invalid shape"),
    "an empty size that overflows": (pickled(view(shape=(0, 2**62, 2**62), stride=(0, 0, 0))), "the invalid shape"),
    "a size of text": (pickled(view(shape=("a", "b"))), "the invalid shape"),
    "a thousand dimensions": (pickled(view(shape=(1,) * 1000, stride=(1,) * 1000)), "the invalid shape"),
    "one number a trillion times": (pickled(view(shape=(10**12,), stride=(0,))), "more than .* bytes of tensors"),
    "metadata": (pickled(view(metadata={"conj": True})), "unsupported arguments or metadata"),
    "objects in an array": (pickled(array(code="O8", data=[Call(torch.Size, (1,))])), "array of Python objects"),
    "objects in an array's bytes": (pickled(array(code="O")), "array of Python objects"),
    "text in an array": (pickled(array(code="U2")), "unsupported dtype '<U2'"),
    "records in an array": (pickled(array(code="V8", names=("a",))), "sets the state of an object of type NumpyType"),
    "an array of another size": (pickled(array(shape=(3,))), r"8 bytes, but its shape \[3\] requires 12"),
    "an array of a trillion": (pickled(array(shape=(10**12,))), "requires 4,000,000,000,000"),
    "an array of numbers as bytes": (pickled(array(data=3)), "whose data has type int"),
    "an array without data": (pickled(Call(RECONSTRUCT, np.ndarray, (0,), b"b")), "array without data"),
    "an array of no array": (
        pickled(Call(RECONSTRUCT, list, (0,), b"b")),
        "calls numpy.core.multiarray._reconstruct with",
    ),
    "an array beyond latin-1": (pickled(array(data="\u1234" * 8)), "not Latin-1"),
    "one dict again and again": (repeated(OrderedDict, [[1, 2]] * 20_000), "more than 500,000 entries"),
    "one tensor again and again": (
        repeated(view().parts[0], *view().parts[1], times=31_000),
        "more than 30,000 tensors",
    ),
    "one array again and again": (
        repeated(FROM_BUFFER, bytes(2**20), Call(np.dtype, "f4"), (2**18,), "C"),
        "bytes of arrays",
    ),
    "bytes again and again": (
        b"\x80\2](B\0\0\x10\0" + bytes(2**20) + b"q\0" + b"h\0" * 100 + b"e.",
        "non-tensor data",
    ),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", EXECUTES)
@pytest.mark.parametrize("container", [torch_zip, torch_old, pickled])
def test_error_names_executable_content(tmp_path: Path, container: Callable[[Any], bytes], name: str) -> None:
    message = f"contains {name}, which is not a tensor {ADVICE}"
    check_rejected(
        tmp_path, container({"model": view() if container is not pickled else array(), "evil": EXECUTES[name]}), message
    )


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("protocol", range(6))
def test_error_names_executable_content_in_any_protocol(tmp_path: Path, protocol: int) -> None:
    check_rejected(
        tmp_path, pickle.dumps(EXECUTES["posix.system"], protocol), "contains posix.system, which is not a tensor"
    )


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", OPCODES)
def test_unneeded_opcodes_are_rejected(tmp_path: Path, name: str) -> None:
    check_rejected(
        tmp_path,
        torch_zip(b"\x80\2" + OPCODES[name] + b"."),
        f"uses the pickle opcode {name}, which tensors do not need",
    )


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", PICKLES)
def test_invalid_pickles_are_rejected(tmp_path: Path, name: str) -> None:
    check_rejected(tmp_path, torch_zip(PICKLES[name][0]), PICKLES[name][1])


def test_large_memo_index_takes_no_memory(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\x80\2X\1\0\0\0ar\xff\xff\xff\x7fNj\xff\xff\xff\x7f.")
    with little_memory():
        assert read_pickle(tmp_path / "x") == "a"


@pytest.mark.usefixtures("unchecked")
def test_long_names_are_truncated(tmp_path: Path) -> None:
    name = b"\x1b[2J" + b"x" * 5000
    evil = b"\x80\4\x8c\1mX" + struct.pack("<I", len(name)) + name + b"\x93."
    check_rejected(tmp_path, evil, r"contains m\.\\x1b\[2Jx+\.\.\., which is not a tensor")
