"""Files written by torch and Paddle are read like torch and Paddle read them.

The Paddle files were written by Paddle 3.3.1, which is too large a dependency; see `PADDLE`.
"""

import base64
import io
import pickle
import struct
import zipfile
import zlib
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from vitreous.weights.io.errors import BadCheckpoint
from vitreous.weights.io.pickle.read import read_pickle

DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128, torch.bool),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint64, torch.uint32, torch.uint16, torch.uint8),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz),
]
# paddle.save of nn.Linear(2, 3).state_dict(): weight [[0, .25, .5], [.75, 1, 1.25]], bias [1, -2, 3.5]; zlib, base 85.
PADDLE = {
    "state dict": (
        "c-l=*J!``-5S3!Pq2Q%UD0D7lG8sCS#^9|2Q`+vXY%7%^wu2%OJQTe2!=NqKJwK)Yti8w-a`5iBckj4&z5jhpiHkRw+q0dhUZn;*YfQcAqO5"
        "3@h-$Oe6<3OPV8cv_qHVTXnL@)JY~Yk&r%gFZ_Q1$HBs7Olc!W8lY{I+`kbw<K-EG8iX|lS3;cJ|Gmfk{|ruV-XE-|7ZACk+_SAU0TNl1+75"
        "r-w<*!p?Jw;+8vJ)V>2|HnLRE`}r=#pH*Om)I>_Jvq-tiSoI9;ELBm3zcGtW5DMnwc)yI1XtN2+GPunvlAjm!kFj}g7a)g"
    ),
    "protocol 2": (
        "c-mEv%TB^T6o#iQpjJe@qT=06R}CgEjdX33##9&G)m}!Y2^9We8p48v4Ippfv*?5AwBW+CI5TtR{NMR=Ch8c(@G69mAx++yfD)xyw?8udsK="
        "?<%{n3pI1fg;&uP?42ZCpj(4j8d^fX@nLbJ&frAW$R8Vz)s<`*4hPm$~pm10IG5J`HAwHel3Y|Np%*fea#R&8yD>IxZ)QC}*zJXI>*?oeBN%"
        "(3mFZrEBuyT^{>IFCOviewXk-EhImUX%RA*W^LwHX&9!f8^=2jXfqu@4Gk<I1If~?kougXfTx({*Rb6b?o9KH>FL{Wc3_dTOlQdd`}2@wQ!n"
        "~&Rm=eT!h8k=VCJ%r}0bgDd0hu3d$XMSQakFxH6dHRr4JrDGj*aGKYQ(*R1is7|P;JmYKf}*mzO"
    ),
    "nested": (
        "c-l>mO-sZu5Qfw3)(>1oJc#%U^iuZVQQU=kGEl*b$J(aR1kw+(2}=(`FS}aEZO6Mm#eb%=EusT6FwB$pebbIV9zD|6D_ppssB*5r9k5C%&Wx"
        "<e1#b5`=bGoYk{Q^*<pYvCOD<o80k@Y~sf^rmfw8sXNVtiTB~NuS4VTFj+-Yfxx(O3jX&x39@l@-yK`zmpp@-47mv%u<g4-?g0oed0D~P-d-"
        "T-~6M@Q6OgE(?QZkoDx8$Dk^_deWx=Uqb_$9LaY{h-7^)<tK-FWVa&GeYLrE%xUO@Vtf<zINkGrV9}J|MF*;UmS|#Z3=Pno59EByo)A-2Kgf"
        "7Y5u2UUBK&#3820We*lnHg0K"
    ),
    "types": (
        "c-n=KJ4*vW5Xbjk38ILkNMoa2Yz`Abun-KS^WYG*U-#}N*@N7Jz1`vpAx$uW?J_og8o!y|BVu8|DQ5W3<HyXb?Dr3YH1>)EZ3pw=1a&`ENnW"
        "}%%mlcJTFRIS!AjI8R6v-eg%m23xI^tUov6EM)VA!<BWs))0lwiQ4m`uN*2o?0M6%4G9x>Gjx0|+VY2y}s-@pH=tZ^QZ7;I;q)gAeKnPMfh6"
        ";H;<ZQiZP{OE^kR^n8f@y#!d_YSen_6HJk9~)|?2-%W}zu>EyIv@W>wF$Xs_d9=T-k}6U&)EYLECC6^uflYS)mOQpkAW>fP?_ZP8hKy$7LbB"
        "q5+W)gEiyre$S)71N2rwh4WT=spa"
    ),
}
WEIGHT, BIAS = torch.arange(6.0).view(2, 3) / 4, torch.tensor([1, -2, 3.5])


def saved(value: object, old: bool = False, protocol: int = 2) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream, pickle_protocol=protocol, _use_new_zipfile_serialization=not old)
    return stream.getvalue()


def read(folder: Path, data: bytes) -> Any:
    file = folder / "x.pth"
    file.write_bytes(data)
    return read_pickle(file)


def as_bytes(tensor: Tensor) -> list[int]:
    return tensor.detach().contiguous().flatten().view(torch.uint8).tolist()


def assert_same(actual: Any, expected: Any) -> None:
    """Compare as plain values: an OrderedDict equals a dict, a Parameter a tensor, a Size a tuple, a type its name."""
    match expected:
        case Tensor():
            assert type(actual) is Tensor
            assert not actual.requires_grad
            assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
            assert actual.stride() == expected.stride() or not actual.numel()
            assert as_bytes(actual) == as_bytes(expected)
        case dict():
            assert type(actual) is dict
            assert list(actual) == list(expected)
            for key in expected:
                assert_same(actual[key], expected[key])
        case list() | tuple():
            assert type(actual) is (list if isinstance(expected, list) else tuple)
            for one, other in zip(actual, expected, strict=True):
                assert_same(one, other)
        case torch.dtype():
            assert f"torch.{actual}" == str(expected)
        case _:
            assert type(actual) is type(expected)
            assert actual == expected


# ---- torch -----------------------------------------------------------------------------------------------------------


def contents() -> dict[str, Any]:
    base = torch.randn(4, 6)
    with_attribute = torch.nn.Parameter(torch.ones(2))
    with_attribute.note = "kept by torch, of no use here"  # type: ignore[attr-defined]
    return {
        "types": {str(dtype): torch.randint(0, 2, (3, 5)).to(dtype) for dtype in DTYPES},
        "views": [base, base.T, base[1:3, ::2], base[2], base[2, 2], base[4:], base[:0, 3:], base.flatten()[5:]],
        "expanded": torch.arange(3.0).expand(4, 3),
        "images": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "empty": [torch.empty(0), torch.empty(0, 3), torch.empty(2, 0, 3).transpose(0, 2)],
        "parameters": [torch.nn.Parameter(torch.randn(3)), torch.nn.Parameter(base[1:], False), with_attribute],
        "model": torch.nn.Sequential(torch.nn.Conv2d(3, 4, 2), torch.nn.BatchNorm2d(4)).state_dict(),
        "ordered": OrderedDict(b=1, a=OrderedDict(c=torch.ones(1))),
        "plain": [
            1,
            -1,
            255,
            256,
            -(2**31),
            2**40,
            2**100,
            0.5,
            float("inf"),
            True,
            None,
            "ä\U0001f600",
            "",
            b"\xff\0",
        ],
        "tuples": ((), (1,), (1, 2), (1, 2, 3), (1, 2, 3, (4, [5, {}, []]))),
        "long": ["x" * 300, list(range(2000)), {i: str(i) for i in range(1100)}],
        "size": torch.Size([2, 3]),
        "dtype": torch.bfloat16,
        None: 1,
        3: 4,
        1.5: 2,
    }


@pytest.mark.slow
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("old", [False, True])
def test_torch_files_are_read_like_torch_load(tmp_path: Path, old: bool, protocol: int) -> None:
    value = contents()
    data = saved(value, old, protocol)
    assert_same(read(tmp_path, data), value)
    if protocol == 2 and not old:  # torch's safe reader supports only this protocol, and no uint16 in old files
        assert_same(read(tmp_path, data), torch.load(io.BytesIO(data), weights_only=True))


def test_optimizer_state_is_read(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}
    assert_same(read(tmp_path, saved(checkpoint)), checkpoint)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("old", [False, True])
def test_numpy_arrays_with_tensors_are_read(tmp_path: Path, old: bool, protocol: int) -> None:
    arrays = {
        "little": np.arange(6, dtype="<f4").reshape(2, 3),
        "big": np.arange(6, dtype=">f8").reshape(2, 3),
        "complex": np.array([1 + 2j, 3 - 4j], ">c8"),
        "fortran": np.asfortranarray(np.arange(24, dtype="<i8").reshape(2, 3, 4)),
        "part": np.arange(24, dtype="u2").reshape(4, 6)[1:, ::2],
        "bool": np.array([True, False]),
        "scalar": np.array(2.5, "f2"),
        "empty": np.zeros((3, 0), "i1"),
    }
    numbers = {"real": np.float64(0.25), "whole": np.int64(-3), "flag": np.bool_(True)}
    found = read(tmp_path, saved({"arrays": arrays, "numbers": numbers}, old, protocol))
    assert found["numbers"] == {"real": 0.25, "whole": -3, "flag": True}
    assert [type(number) for number in found["numbers"].values()] == [float, int, bool]
    for name, array in arrays.items():
        assert_same(found["arrays"][name], torch.from_numpy(array.astype(array.dtype.newbyteorder("="), order="C")))


@pytest.mark.parametrize("old", [False, True])
def test_shared_storage_stays_shared(tmp_path: Path, old: bool) -> None:
    base = torch.zeros(4, 3)
    data = saved({"a": base, "b": base[1:], "c": base, "d": torch.zeros(4, 3)}, old)
    found = read(tmp_path, data)
    found["b"][0] = 1
    assert found["a"].sum() == found["c"].sum() == 3
    assert found["a"] is found["c"]
    assert found["d"].sum() == 0
    assert (tmp_path / "x.pth").read_bytes() == data  # but changes are not written to the file
    assert read_pickle(tmp_path / "x.pth")["a"].sum() == 0


def test_tensors_are_mapped_and_aligned(tmp_path: Path) -> None:
    found = read(tmp_path, saved([torch.randn(count) for count in range(1, 40)]))
    assert all(tensor.data_ptr() % 64 == 0 for tensor in found)
    assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in found)  # not the entire file
    if (maps := Path("/proc/self/maps")).exists():
        assert str(tmp_path / "x.pth") in maps.read_text()
        found = read(tmp_path, saved([torch.randn(3)], old=True))  # not aligned, so it is copied
        assert found[0].data_ptr() % 64 == 0
        assert str(tmp_path / "x.pth") not in maps.read_text()


def test_read_only_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "x.pth").write_bytes(saved(torch.ones(3)))
    (tmp_path / "x.pth").chmod(0o400)
    tensor = read_pickle(tmp_path / "x.pth")
    (tmp_path / "x.pth").unlink()
    tensor += 1
    assert tensor.tolist() == [2, 2, 2]


def test_unaligned_storages_are_copied(tmp_path: Path) -> None:
    """A zip repacked by another program is not aligned."""
    whole = zipfile.ZipFile(io.BytesIO(saved({"a": torch.arange(5.0), "b": torch.arange(3)})))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for info in whole.infolist():
            archive.writestr(info.filename, whole.read(info))
    found = read(tmp_path, packed.getvalue())
    assert found["a"].tolist() == [0, 1, 2, 3, 4]
    assert found["b"].data_ptr() % 64 == 0


def test_file_without_checksums_is_read(tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        data = saved(torch.ones(3))
    finally:
        torch.serialization.set_crc32_options(True)
    assert read(tmp_path, data).tolist() == [1, 1, 1]


def test_pickle_of_python_2_is_read(tmp_path: Path) -> None:
    """Python 2.7 pickled an OrderedDict as a list of pairs, with array bytes as text."""
    kind = b"cnumpy\ndtype\nU\2f4K\0K\1\x87R(K\3U\1<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb"
    state = b"(K\1K\2\x85" + kind + b"\x89U\x08" + struct.pack("<2f", 1, -2) + b"tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85U\1b\x87R" + state
    found = read(tmp_path, b"\x80\2ccollections\nOrderedDict\n]](U\1a" + array + b"ea\x85R.")
    assert found["a"].tolist() == [1, -2]


# ---- Paddle ----------------------------------------------------------------------------------------------------------


def paddle_file(name: str) -> bytes:
    return zlib.decompress(base64.b85decode(PADDLE[name]))


@pytest.mark.parametrize("name", ["state dict", "protocol 2"])
def test_paddle_state_dicts_are_read(tmp_path: Path, name: str) -> None:
    assert_same(read(tmp_path, paddle_file(name)), {"weight": WEIGHT, "bias": BIAS})


def test_nested_paddle_tensors_are_read(tmp_path: Path) -> None:
    found = read(tmp_path, paddle_file("nested"))
    assert_same(found, {"model": {"weight": WEIGHT, "bias": BIAS}, "epoch": 3})


def test_paddle_dtypes_are_read(tmp_path: Path) -> None:
    expected = {"bf16": BIAS.bfloat16(), "i64": torch.tensor([1, 2]), "scalar": torch.tensor(2.5)}
    assert_same(read(tmp_path, paddle_file("types")), expected)


def test_split_paddle_arrays_are_read(tmp_path: Path) -> None:
    """`paddle.save(..., protocol=2)` splits arrays above 1 GiB; this one is small."""
    whole = np.arange(6, dtype="f4")
    parts = {"w": {"OriginShape": (2, 3), "slices": ["w@@.0", "w@@.1"]}}
    value = {"w@@.0": whole[:4], "w@@.1": whole[4:], "b": whole, "UnpackBigParamInfor@@": parts}
    expected = {"b": torch.arange(6.0), "w": torch.arange(6.0).view(2, 3)}
    assert_same(read(tmp_path, pickle.dumps(value, 2)), expected)
    bad = [((2, 4), ["w@@.0", "w@@.1"]), ((2, 4), ["w@@.0"] * 2), ((6,), ["x"]), ((0,), []), ((), 3), ((6,), [[]])]
    for shape, slices in bad:
        value["UnpackBigParamInfor@@"] = {"w": {"OriginShape": shape, "slices": slices}}
        with pytest.raises(BadCheckpoint, match=r"x.pth contains w in parts that do not match its shape"):
            read(tmp_path, pickle.dumps(value, 2))
