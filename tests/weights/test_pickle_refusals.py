"""What a pickle may not hold: each is refused at once, by name, in one line, and without any effect."""

import argparse
import contextlib
import functools
import io
import operator
import os
import pickle
import resource
import struct
import time
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from damage import check_noticed_or_harmless, damaged
from vitreous.weights.pickles import read_pickle
from vitreous.weights.tensors import BadCheckpoint

CANARY = "touch canary"
ADVICE = "nothing of it was executed; ask for a file with only the weights"
RECONSTRUCT, FROM_BUFFER = np.zeros(1).__reduce__()[0], np.zeros(1).__reduce_ex__(5)[0]


class Call:
    """Pickled as a call of a function, and as setting a state of what it made."""

    def __init__(self, function: Callable[..., Any], *arguments: Any, state: Any = None) -> None:
        self.parts = (function, arguments) if state is None else (function, arguments, state)

    def __reduce__(self) -> Any:
        return self.parts


class Outside:
    """Pickled as a reference to something outside of the pickle."""

    def __init__(self, *identity: Any) -> None:
        self.identity = identity


class Pickler(pickle.Pickler):
    def persistent_id(self, value: object) -> Any:
        return value.identity if isinstance(value, Outside) else None


def pickled(value: Any, protocol: int = 2) -> bytes:
    stream = io.BytesIO()
    Pickler(stream, protocol).dump(value)
    return stream.getvalue()


def zip_of(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return stream.getvalue()


def torch_zip(value: Any, storage: bytes = bytes(24), **members: bytes) -> bytes:
    data = value if isinstance(value, bytes) else pickled(value)
    return zip_of({"x/data.pkl": data, "x/data/0": storage} | {f"x/{name}": data for name, data in members.items()})


def torch_old(value: Any, keys: Any = ("0",), count: int = 6, version: int = 1001, little_endian: bool = True) -> bytes:
    parts = (0x1950A86A20F9469CFC6C, version, {"little_endian": little_endian}, value, list(keys))
    return b"".join(map(pickled, parts)) + struct.pack("<q", count) + bytes(24)


def view(shape: Any = (2, 3), stride: Any = (3, 1), offset: Any = 0, elements: Any = 6, metadata: Any = None) -> Call:
    storage = Outside("storage", torch.FloatStorage, "0", "cpu", elements)
    return Call(torch._utils._rebuild_tensor_v2, storage, offset, shape, stride, False, OrderedDict(), metadata)


def array(shape: Any = (2,), code: str = "f4", data: Any = bytes(8), names: Any = None) -> Call:
    kind = Call(np.dtype, code, False, True, state=(3, "<", None, names, None, -1, -1, 0))
    return Call(RECONSTRUCT, np.ndarray, (0,), b"b", state=(1, shape, kind, False, data))


def doubled(first: bytes, join: Callable[[bytes], bytes]) -> bytes:
    """A pickle that joins the last value with itself, a hundred times: 2 ** 100 values in half a kilobyte."""
    return b"\x80\2" + first + b"q\0" + b"".join(join(b"h" + bytes([i])) + b"q" + bytes([i + 1]) for i in range(100))


def shifted(data: bytes, field: bytes, at: int, form: str, value: int) -> bytes:
    """A zip, with another number in one of its records."""
    whole = bytearray(data)
    struct.pack_into(form, whole, data.rindex(field) + at, value)
    return bytes(whole)


def repeated(function: Callable[..., Any], *arguments: Any, times: int = 100) -> bytes:
    """A pickle that calls a function again and again with arguments that it holds once."""
    call = b"j" + struct.pack("<I", 1000) + b"j" + struct.pack("<I", 1001) + b"R"
    held = [pickled(part)[2:-1] + b"r" + struct.pack("<I", 1000 + i) for i, part in enumerate((function, arguments))]
    return b"\x80\2" + b"".join(held) + b"](" + call * times + b"e."


EXECUTES = {
    "posix.system": Call(os.system, CANARY),
    "builtins.eval": Call(eval, f"__import__('os').system({CANARY!r})"),
    "builtins.getattr": Call(getattr, "os", "system"),
    "argparse.Namespace": argparse.Namespace(lr=1),
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
    "a call of no function": (b"\x80\2ctorch\nfloat32\n)R.", "calls a dtype"),
    "a call of text": (b"\x80\2X\1\0\0\0a)R.", "calls a str"),
    "a call without arguments": (b"\x80\2ctorch\nSize\nNR.", "calls with a NoneType"),
    "a call with others": (b"\x80\2ctorch\nSize\nN\x85R.", "calls torch.Size with arguments"),
    "a list of no list": (b"\x80\2}Na.", "appends to a dict"),
    "items of no dict": (b"\x80\2]NNs.", "sets items of a list"),
    "items of a tensor": (pickled(view())[:-1] + b"NNs.", "sets items of a View"),
    "a state for a list": (b"\x80\2]}b.", "sets the state of a list"),
    "a state for a tensor": (pickled(view())[:-1] + b"}b.", "sets the state of a View"),
    "a second state for an array": (pickled(array())[:-1] + b"(K\1K\2\x85NNNtb.", "sets the state of a Array"),
    "a function as a value": (b"\x80\2ctorch\nSize\n.", "holds torch.Size where a value must be"),
    "a storage as a value": (pickled(Outside("storage", torch.FloatStorage, "0", "cpu", 6)), "holds a bare Elements"),
    "a type as a name": (b"\x80\4NN\x93.", "names something by a NoneType"),
    "an unknown reference": (pickled(Outside("module", "x")), r"refers to \('module', 'x'\)"),
    "a reference to a negative storage": (pickled(view(elements=-1)), "refers to"),
    "a reference by number": (b"\x80\2K\1Q.", "refers to 1"),
    "an old view of a storage": (pickled(Outside("storage", torch.FloatStorage, "0", "cpu", 6, (1, 2))), "refers to"),
    "bytes beyond the end": (b"\x80\4\x8e" + struct.pack("<Q", 2**62), "ends early: 4,611,686,018,427,387,904 bytes"),
    "text beyond the end": (b"\x80\2X\xff\xff\xff\xffabc", "ends early: 4,294,967,295 bytes"),
    "text of negative length": (b"\x80\2T\xff\xff\xff\xffabc", "ends early: -1 bytes"),
    "a frame beyond the end": (b"\x80\4\x95" + struct.pack("<Q", 2**40) + b"N.", "ends early"),
    "a protocol of the future": (b"\x80\x77N.", "protocol 119"),
    "no text": (b"\x80\2X\1\0\0\0\xff.", "is not a whole pickle"),
    "an empty stack": (b"\x80\2.", "is not a whole pickle"),
    "too few for a tuple": (b"\x80\2N\x86.", "is not a whole pickle"),
    "a memo that was not put": (b"\x80\2h\7.", "is not a whole pickle"),
    "no end": (b"\x80\2N", "is not a whole pickle"),
    "no opcode": (b"\x80\2\xfe.", "no opcode, but 0xfe, at byte 2"),
    "more after the end": (b"\x80\2N.N.", "2 bytes after the end"),
    "a billion laughs": (doubled(b"]", lambda last: b"](" + last * 2 + b"e") + b".", "holds more than"),
    "a billion tuples as a key": (
        doubled(b")", lambda last: last * 2 + b"\x86") + b"q\0}h\0Ns.",
        "a key of type tuple",
    ),
    "keys that collide": (pickled({2**61 + i * (2**61 - 1): i for i in range(10_000)}), "a key of type int"),
    "a list in itself": (b"\x80\2]q\0h\0a.", "inside each other"),
    "deep nesting": (b"\x80\2" + b"]" * 100_000 + b"a" * 99_999 + b".", "inside each other"),
    "endless steps": (b"\x80\2]" + b"Na" * 2_000_000 + b".", "more than 500,000 steps"),
    "a dict of no pairs": (pickled(Call(OrderedDict, [1])), "makes a dict of a int"),
    "a storage larger than the file": (pickled(view(elements=10**12)), "holds 24 bytes of the storage 0, but must"),
    "a storage of two sizes": (pickled([view(), view(elements=5, shape=(1,), stride=(1,))]), "with 24 and with 20"),
    "a tensor beyond its storage": (pickled(view(shape=(2, 4))), r"shape \[2, 4\] at element 0 .* has 6 elements"),
    "a tensor before its storage": (pickled(view(offset=-1)), "at element -1"),
    "a negative step": (pickled(view(stride=(-3, 1))), "has 6 elements"),
    "a long step": (pickled(view(stride=(2**62, 1))), "has 6 elements"),
    "too few steps": (pickled(view(stride=(3,))), "has 6 elements"),
    "a negative size": (pickled(view(shape=(-2, -3))), r"shape \(-2, -3\), which no tensor can have"),
    "a size that overflows": (pickled(view(shape=(2**32, 2**32), stride=(0, 0))), "which no tensor can have"),
    "an empty size that overflows": (pickled(view(shape=(0, 2**62, 2**62), stride=(0, 0, 0))), "no tensor can have"),
    "a size of text": (pickled(view(shape=("a", "b"))), "no tensor can have"),
    "a thousand dimensions": (pickled(view(shape=(1,) * 1000, stride=(1,) * 1000)), "no tensor can have"),
    "one number a trillion times": (pickled(view(shape=(10**12,), stride=(0,))), "more than .* bytes in all"),
    "metadata": (pickled(view(metadata={"conj": True})), "arguments or metadata unknown here"),
    "objects in an array": (pickled(array(code="O8", data=[Call(torch.Size, (1,))])), "array of Python objects"),
    "objects in an array's bytes": (pickled(array(code="O")), "array of Python objects"),
    "text in an array": (pickled(array(code="U2")), "array of type '<U2'"),
    "records in an array": (pickled(array(code="V8", names=("a",))), "sets the state of a NumpyType"),
    "an array of another size": (pickled(array(shape=(3,))), r"shape \[3\], which takes 12 bytes, but has 8"),
    "an array of a trillion": (pickled(array(shape=(10**12,))), "takes 4,000,000,000,000 bytes, but has 8"),
    "an array of numbers as bytes": (pickled(array(data=3)), "whose bytes are a int"),
    "an array without numbers": (pickled(Call(RECONSTRUCT, np.ndarray, (0,), b"b")), "array without numbers"),
    "an array of no array": (pickled(Call(RECONSTRUCT, list, (0,), b"b")), "holds builtins.list"),
    "an array beyond latin-1": (pickled(array(data="\u1234" * 8)), "letters beyond Latin-1"),
    "one dict again and again": (repeated(OrderedDict, [[1, 2]] * 20_000), "more than 500,000 pairs"),
    "one tensor again and again": (
        repeated(view().parts[0], *view().parts[1], times=30_000),
        "more than 20,000 tensors",
    ),
    "one array again and again": (
        repeated(FROM_BUFFER, bytes(2**20), Call(np.dtype, "f4"), (2**18,), "C"),
        "arrays of more",
    ),
    "bytes again and again": (
        b"\x80\2](B\0\0\x10\0" + bytes(2**20) + b"q\0" + b"h\0" * 100 + b"e.",
        "bytes outside of tensors",
    ),
}
ZIP = torch_zip(view())
FILES = {
    "nothing": (b"", "is empty"),
    "a pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "pointer of Git LFS"),
    "a web page": (b"<!DOCTYPE html>", "begins with b'<!DOCTYPE html>', but must be"),
    "a compressed bomb": (
        zip_of({"x/data.pkl": pickled(view(elements=2**26)), "x/data/0": bytes(2**26)}, zipfile.ZIP_DEFLATED),
        "compressed, but torch stores it",
    ),
    "a compressed storage": (
        shifted(torch_zip(view()), b"PK\1\2", 10, "<H", zipfile.ZIP_DEFLATED),
        "holds x/data/0 compressed, but torch stores it",
    ),
    "another method": (shifted(ZIP, b"PK\1\2", 10, "<H", zipfile.ZIP_LZMA), "compressed by method 14"),
    "a password": (shifted(ZIP, b"PK\1\2", 8, "<H", 1), "encrypted"),
    "two sizes": (shifted(ZIP, b"PK\1\2", 24, "<I", 2**31), "two sizes at once"),
    "a member beyond the end": (
        shifted(shifted(ZIP, b"PK\1\2", 20, "<I", 2**31), b"PK\1\2", 24, "<I", 2**31),
        "ends early: x/data/0 would reach to byte 2,147",
    ),
    "members that overlap": (shifted(ZIP, b"PK\1\2", 42, "<I", 0), "which overlaps x/data"),
    "a member elsewhere": (shifted(ZIP, b"PK\1\2", 42, "<I", 200), "in its directory, but not at byte 200"),
    "a name twice": (zip_of({"x/data.pkl": b"", "x/data/0": b"", "x/data/1": b""}).replace(b"a/1", b"a/0"), "0 twice"),
    "a directory without end": (
        b"PK\3\4" + bytes(2**23) + struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 1, 1, 2**23, 4, 0),
        "a directory of 8,388,608 bytes",
    ),
    "a cut zip": (ZIP[:-9], "is not a whole zip file"),
    "another zip": (zip_of({"a.npy": b""}), "0 data.pkl, but torch writes one"),
    "two zips": (zip_of({"a/data.pkl": b"", "b/data.pkl": b""}), "2 data.pkl"),
    "a program": (torch_zip(view(), **{"constants.pkl": b""}), "is a TorchScript program"),
    "the big end first": (torch_zip(view(), byteorder=b"big"), "the big end first"),
    "a missing storage": (zip_of({"x/data.pkl": pickled(view())}), "holds 0 bytes of the storage 0, but must hold 24"),
    "another version": (torch_old(view(), version=1), "other than 1001"),
    "the big end first, long ago": (torch_old(view(), little_endian=False), "the big end first"),
    "storages that are not listed": (torch_old(view(), keys=()), "lists other storages"),
    "storages that are no text": (torch_old(view(), keys=([[]],)), "lists other storages"),
    "storages that are not used": (torch_old(view(), keys=("0", "1")), "lists other storages"),
    "a storage twice": (torch_old(view(), keys=("0", "0")), "lists other storages"),
    "another count": (torch_old(view(), count=2**40), "of 1,099,511,627,776 elements, but must hold 24"),
    "a cut storage": (torch_old(view())[:-1], "holds 23 bytes for the storage 0"),
    "no storage": (torch_old(view())[:-32], "ends early: the storage 0"),
    "the beginning only": (torch_old(view())[:40], "is not a whole pickle|ends early"),
}


@contextlib.contextmanager
def little_memory(spare: int = 1 << 28) -> Iterator[None]:
    """Whoever asks for more than `spare` bytes from now on gets a MemoryError, even if nothing is written there."""
    if not (statm := Path("/proc/self/statm")).exists():
        yield
        return
    pages = int(statm.read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + spare, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unchecked: None) -> Callable[[bytes, str], None]:
    monkeypatch.chdir(tmp_path)

    def check(data: bytes, reason: str) -> None:
        Path("x.pth").write_bytes(data)
        start = time.process_time()
        with little_memory(), pytest.raises(BadCheckpoint, match=f"^x.pth .*({reason})") as error:
            read_pickle(Path("x.pth"))
        assert time.process_time() - start < 1
        assert "\n" not in str(error.value)
        assert len(str(error.value)) < 300
        assert os.listdir() == ["x.pth"]

    return check


@pytest.mark.parametrize("name", EXECUTES)
@pytest.mark.parametrize("container", [torch_zip, torch_old, pickled])
def test_what_would_be_executed_is_named(
    refused: Callable[[bytes, str], None], container: Callable[[Any], bytes], name: str
) -> None:
    said = f"holds {name}, which is not a tensor: {ADVICE}"
    refused(container({"model": view() if container is not pickled else array(), "evil": EXECUTES[name]}), said)


@pytest.mark.parametrize("protocol", range(6))
def test_in_any_protocol(refused: Callable[[bytes, str], None], protocol: int) -> None:
    refused(pickle.dumps(EXECUTES["posix.system"], protocol), "holds posix.system, which is not a tensor")


@pytest.mark.parametrize("name", OPCODES)
def test_what_tensors_do_not_need_is_refused(refused: Callable[[bytes, str], None], name: str) -> None:
    refused(torch_zip(b"\x80\2" + OPCODES[name] + b"."), f"uses the pickle opcode {name}, which no tensor needs")


@pytest.mark.parametrize("name", PICKLES)
def test_what_a_pickle_may_not_say_is_refused(refused: Callable[[bytes, str], None], name: str) -> None:
    refused(torch_zip(PICKLES[name][0]), PICKLES[name][1])


@pytest.mark.parametrize("name", FILES)
def test_files_that_are_not_what_they_say_are_refused(refused: Callable[[bytes, str], None], name: str) -> None:
    refused(*FILES[name])


def test_the_examples_are_refused_for_what_is_wrong_with_them(tmp_path: Path) -> None:
    for data in (torch_zip([view(), array()]), torch_old([view(), array()])):
        (tmp_path / "x").write_bytes(data)
        tensor, numbers = read_pickle(tmp_path / "x")
        assert tensor.tolist() == [[0, 0, 0], [0, 0, 0]]
        assert numbers.tolist() == [0, 0]


def test_a_memo_of_any_size_takes_no_memory(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\x80\2X\1\0\0\0ar\xff\xff\xff\x7fNj\xff\xff\xff\x7f.")
    with little_memory():
        assert read_pickle(tmp_path / "x") == "a"


def test_what_is_no_file_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, reason in [("", "is not a file"), ("pipe", "is not a file"), ("none", "cannot be read: No such file")]:
        with pytest.raises(BadCheckpoint, match=f"{name} {reason}"):
            read_pickle(tmp_path / name)


def test_a_long_name_does_not_flood_the_terminal(refused: Callable[[bytes, str], None]) -> None:
    name = b"\x1b[2J" + b"x" * 5000
    evil = b"\x80\4\x8c\1mX" + struct.pack("<I", len(name)) + name + b"\x93."
    refused(evil, r"holds m\.\\x1b\[2Jx+\.\.\., which is not a tensor")


# ---- Chance ----------------------------------------------------------------------------------------------------------


def _samples() -> list[bytes]:
    base = torch.arange(12.0).view(3, 4)
    value = {"a": base, "b": base.T[1:], "c": torch.nn.Parameter(base), "d": [1, 2.5, None, "x"], "e": torch.ones(2)}
    value |= {"model": torch.nn.BatchNorm1d(3).state_dict(), "half": torch.ones(2).half(), "n": np.arange(3.0)}
    arrays = {"a": np.ones((2, 3), "f4"), "b": np.asfortranarray(np.ones((2, 3))), "c": {"d": np.float32(1)}}
    samples = [pickle.dumps(arrays, protocol) for protocol in (2, 4, 5)]
    for old in (False, True):
        stream = io.BytesIO()
        torch.save(value, stream, _use_new_zipfile_serialization=not old)
        samples.append(stream.getvalue())
    return samples


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=damaged(_samples()))
def test_damage_is_noticed_or_harmless(tmp_path: Path, data: bytes) -> None:
    check_noticed_or_harmless(read_pickle, tmp_path / "x", data)
