"""Checkpoints that are pickles, `.pt`, `.pth`, `.bin` and `.pdparams`, read without executing anything in them.

Three containers are told apart by how they begin:

- torch's zip (since 1.6): `<name>/data.pkl` refers to storages, whose bytes are the members `<name>/data/<key>`. They
  are not compressed, so tensors are mapped from the file, as by `torch.load(mmap=True)`.
- torch's older file: five pickles one after the other (a magic number, a version, the kind of machine, the data, the
  keys of the storages), then each storage as a count and its bytes.
- a plain pickle of numpy arrays, which is what Paddle writes. Read from files of Paddle 3.3: `paddle.save(layer.
  state_dict(), ...)` gives a dict of arrays with an entry "StructuredToParameterName@@" (the names the tensors had in
  the program). Inside another dict, a tensor is `tuple((name, array))` instead. bfloat16 is stored as uint16, which
  Paddle does not have otherwise. Protocol 4 is usual; in protocols 2 and 3 an array above 1 GiB is cut into flat
  parts "<key>@@.<i>", listed under "UnpackBigParamInfor@@". All this is undone here, as `paddle.load` does it.

In every one of them a pickle may only describe tensors (see pickle_tensors.py), and keep a few things beside them that
are ignored (see pickle_names.py); anything else is refused by its name.
"""

import mmap
import os
import struct
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard

import torch
from torch import Tensor

from vitreous.weights.io.errors import Refused, naming, shown
from vitreous.weights.io.numpy_arrays import count
from vitreous.weights.io.pickle.machine import OPCODES, Machine
from vitreous.weights.io.pickle.result import Result
from vitreous.weights.io.pickle.tensors import TensorMaker
from vitreous.weights.io.sniff import LONGEST, ZIP, check_start
from vitreous.weights.io.zip_directory import Member, opened_zip

MAGIC = 0x1950A86A20F9469CFC6C  # of torch's older files
VERSION = 1001
COUNT = struct.Struct("<q")
NAMES = "StructuredToParameterName@@"
PARTS = "UnpackBigParamInfor@@"


def read_pickle(path: Path) -> Any:
    """What a file holds: dicts, lists and tuples of tensors, text, numbers and None; a type is given by its name.

    What training scripts keep beside weights, such as their settings, is `Ignored`.

    Tensors are on the CPU, without gradient. Those that share memory in the file share it here. What is changed in
    them does not reach the file.
    """
    with naming(path), open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            raise Refused("is empty")
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
        if data[: len(ZIP)] == ZIP:
            return _read_zip(file, data)
        _check_start(bytes(data[:LONGEST]))
        machine = Machine(data, TensorMaker(len(data)))
        first = machine.run()
        return _read_old(data, machine.at) if first == MAGIC else _read_paddle(machine, first)


def _check_start(start: bytes) -> None:
    check_start(start)
    if start[0] not in OPCODES:
        raise Refused(f"begins with {start[:16]!r}, but must be a zip of torch's or a pickle")


# ---- torch's zip -----------------------------------------------------------------------------------------------------


def _read_zip(file: BinaryIO, data: memoryview) -> Any:
    with opened_zip(file) as (_, members):
        pass
    folders = [name.removesuffix("data.pkl") for name in members if name.endswith("/data.pkl") and name.count("/") == 1]
    if len(folders) != 1:
        raise Refused(f"is a zip with {len(folders)} data.pkl, but torch writes one")
    folder = folders[0]
    if f"{folder}constants.pkl" in members:
        raise Refused("is a TorchScript program, not weights: ask for its state_dict(), saved with torch.save")
    if (order := members.get(f"{folder}byteorder")) and bytes(_stored(order, data)[:9]) != b"little":
        raise Refused("is stored with the big end first, but must be with the little end first")
    maker = TensorMaker(len(data))
    machine = Machine(_stored(members[f"{folder}data.pkl"], data), maker)
    value = machine.run()
    _check_end(machine)
    for key, storage in maker.storages.items():
        member = members.get(f"{folder}data/{key}")
        held = len(_stored(member, data)) if member else 0
        if member is None or held < storage.nbytes:
            raise Refused(f"holds {held:,} bytes of the storage {shown(key)}, but must hold {storage.nbytes:,}")
        storage.start = member.start
    return Result(data).of(value)


def _stored(member: Member, data: memoryview) -> memoryview:
    if not member.stored:
        raise Refused(f"holds {shown(member.name)} compressed, but torch stores it as it is")
    return data[member.start : member.start + member.size]


# ---- torch's older file ----------------------------------------------------------------------------------------------


def _read_old(data: memoryview, at: int) -> Any:
    """What follows the magic number, from byte `at` on."""
    maker, values = TensorMaker(len(data)), []
    for _ in range(4):
        machine = Machine(data, maker, at)
        values.append(machine.run())
        at = machine.at
    version, computer, value, keys = values
    if version != VERSION:
        raise Refused(f"is of a version of torch's files other than {VERSION}")
    if not isinstance(computer, dict) or computer.get("little_endian") is not True:
        raise Refused("is stored with the big end first, but must be with the little end first")
    if not _is_names(keys) or sorted(keys) != sorted(maker.storages):
        raise Refused("lists other storages than those that its tensors lie in")
    for key in keys:
        storage = maker.storages[key]
        if at + COUNT.size > len(data):
            raise Refused(f"ends early: the storage {shown(key)} should follow byte {at:,} of {len(data):,}")
        (number,) = COUNT.unpack_from(data, at)
        storage.start = at + COUNT.size
        at = storage.start + storage.nbytes
        if number * storage.itemsize != storage.nbytes or at > len(data):
            raise Refused(
                f"holds {len(data) - storage.start:,} bytes for the storage {shown(key)} of {number:,} elements, "
                f"but must hold {storage.nbytes:,}"
            )
    return Result(data).of(value)


def _is_names(value: object) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(type(name) is str for name in value)


# ---- Paddle's pickle -------------------------------------------------------------------------------------------------


def _read_paddle(machine: Machine, value: object) -> Any:
    _check_end(machine)
    result = Result(machine.data, uint16=torch.bfloat16).of(value)
    if isinstance(result, dict):
        result.pop(NAMES, None)
        _join(result)
    return result


def _join(tensors: dict[Any, Any]) -> None:
    """Put the arrays together again that were too large for their protocol. A part serves once, so nothing grows."""
    parts = tensors.pop(PARTS, {})
    for key, part in parts.items() if isinstance(parts, dict) else ():
        match part:
            case {"OriginShape": tuple(shape), "slices": names} if _is_names(names):
                found = [tensors.pop(name, None) for name in names]
                flat = [piece for piece in found if isinstance(piece, Tensor) and piece.ndim == 1]
                numbers, kinds = sum(piece.numel() for piece in flat), {piece.dtype for piece in flat}
                if len(flat) == len(names) and len(kinds) == 1 and numbers == count(shape):
                    tensors[key] = torch.cat(flat).view(shape)
                    continue
        raise Refused(f"holds {shown(key)} in parts that do not make a whole")


def _check_end(machine: Machine) -> None:
    if more := len(machine.data) - machine.at:
        raise Refused(f"holds {more:,} bytes after the end of its pickle")
