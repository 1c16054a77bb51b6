"""The names that a pickle may use, and what each stands for here: never the thing that Python knows by it.

Any other name is refused, and said: an executable pickle is recognised by what it would have executed.
"""

from dataclasses import dataclass

import torch

from vitreous.weights.io.errors import Refused, shown
from vitreous.weights.io.pickle.resolver import ADVICE

DTYPES = {
    str(dtype): dtype
    for dtype in [
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint64, torch.uint32, torch.uint16, torch.uint8),
        *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.bool),
    ]
}
STORAGES = {
    "torch.DoubleStorage": torch.float64,
    "torch.FloatStorage": torch.float32,
    "torch.HalfStorage": torch.float16,
    "torch.BFloat16Storage": torch.bfloat16,
    "torch.ComplexDoubleStorage": torch.complex128,
    "torch.ComplexFloatStorage": torch.complex64,
    "torch.LongStorage": torch.int64,
    "torch.IntStorage": torch.int32,
    "torch.ShortStorage": torch.int16,
    "torch.CharStorage": torch.int8,
    "torch.ByteStorage": torch.uint8,
    "torch.BoolStorage": torch.bool,
    "torch.UntypedStorage": torch.uint8,  # counted in bytes; the tensor brings its own type
    "torch.storage.UntypedStorage": torch.uint8,
}
FUNCTIONS = {
    "collections.OrderedDict",
    "collections.defaultdict",
    "collections.Counter",
    "torch.Size",
    "torch._utils._rebuild_tensor",
    "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_tensor_v3",
    "torch._utils._rebuild_parameter",
    "torch._utils._rebuild_parameter_with_state",
    "numpy.ndarray",
    "numpy.dtype",
    "numpy.core.multiarray._reconstruct",
    "numpy.core.multiarray.scalar",
    "numpy.core.numeric._frombuffer",
    "builtins.tuple",
    "builtins.bytes",
    "_codecs.encode",
}
# What training scripts keep beside weights. Objects of these classes are not made, and what is in them is forgotten.
BYSTANDERS = {
    *("argparse.Namespace", "types.SimpleNamespace", "yacs.config.CfgNode"),  # settings
    *("omegaconf.dictconfig.DictConfig", "omegaconf.listconfig.ListConfig", "omegaconf.base.ContainerMetadata"),
    *("omegaconf.base.Metadata", "omegaconf.nodes.AnyNode", "omegaconf.nodes.StringNode", "omegaconf.nodes.FloatNode"),
    *("omegaconf.nodes.IntegerNode", "omegaconf.nodes.BooleanNode", "typing.Any"),
    *(f"{package}.utilities.parsing.AttributeDict" for package in ("lightning.pytorch", "pytorch_lightning")),
    *(f"{package}.utilities.data.AttributeDict" for package in ("lightning.fabric", "lightning_fabric")),
    *("pathlib.PosixPath", "pathlib.WindowsPath", "pathlib.PurePosixPath", "pathlib.PureWindowsPath"),
    *("datetime.datetime", "datetime.date", "datetime.time", "datetime.timedelta", "datetime.timezone"),
    *("torch.device", "torch.torch_version.TorchVersion", "builtins.set", "builtins.frozenset"),
    # Types, as settings have them, and as a defaultdict has the one of its values; `long` is Python 2's.
    *("builtins.bool", "builtins.int", "builtins.long", "builtins.float", "builtins.str"),
    *("builtins.list", "builtins.dict"),
}
# numpy 2's names, Python 2's, and Python 3.13's.
RENAMED = {"numpy._core.": "numpy.core.", "__builtin__.": "builtins.", "pathlib._local.": "pathlib."}


@dataclass(frozen=True)
class Function:
    """One of the functions above, to be described and not called."""

    name: str


@dataclass(frozen=True)
class StorageType:
    """A class of torch's whose objects are numbers of one type."""

    dtype: torch.dtype


@dataclass(frozen=True)
class Bystander:
    """One of the classes above, whose objects are ignored."""

    name: str


def find(name: str) -> Function | StorageType | Bystander | torch.dtype:
    """What a dotted name stands for.

    >>> find("torch.HalfStorage"), find("numpy._core.multiarray.scalar")
    (StorageType(dtype=torch.float16), Function(name='numpy.core.multiarray.scalar'))
    >>> find("argparse.Namespace")
    Bystander(name='argparse.Namespace')
    >>> find("posix.system")
    Traceback (most recent call last):
        ...
    vitreous.weights.io.errors.Refused: holds posix.system, which is not a tensor: \
nothing of it was executed; ask for a file with only the weights
    """
    for new, old in RENAMED.items():
        name = old + name.removeprefix(new) if name.startswith(new) else name
    if name in STORAGES:
        return StorageType(STORAGES[name])
    if name in DTYPES:
        return DTYPES[name]
    if name in FUNCTIONS:
        return Function(name)
    if name in BYSTANDERS:
        return Bystander(name)
    raise Refused(f"holds {shown(name)}, which is not a tensor: {ADVICE}")
