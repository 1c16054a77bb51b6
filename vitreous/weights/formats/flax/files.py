"""How a model lies in a `.npz` of Google's codebases: under which root, beside what, layer by layer or all stacked.

Every file is brought to one form, with the names that the tables use. Ways of storing it read from
`big_vision/utils.py` (load_params, recover_dtype) and `big_vision/models/vit.py` (fix_old_checkpoints, scan_to_pyloop).
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from torch import Tensor

from vitreous.model.base_config import MAX_DEPTH
from vitreous.weights.formats.base import Found
from vitreous.weights.formats.flax.layers import AMONG_ALL, AMONG_KIND, Numbers
from vitreous.weights.formats.mapping import renamed
from vitreous.weights.io.containers import write_file
from vitreous.weights.io.safetensors_file import BadCheckpoint

# Where the model is: at the top, beside an optimizer's state, or beside a text model.
ROOTS = ("", "opt/target/", "params/", "params/img/", "img/")
# What lies beside it, once the model itself has no root any more: the state, a clock, the text model and its logits'
# temperature and bias.
BESIDE = (r"opt/.*", r"chrono/.*", r"(params/)?txt/.*", r"(params/)?[tb]")
STACKED = "Transformer/encoderblock/"


def root_of(found: Found) -> str | None:
    """The root of a Vision Transformer's names, or None if this is something else."""
    for root in ROOTS:
        if {f"{root}embedding/kernel", f"{root}Transformer/encoder_norm/scale"} <= found.tensors.keys():
            return root
    return None


def plainly(found: Found, numbers: Numbers, changes: Iterable[tuple[str, str]] = ()) -> Found:
    """The same without a root, layer by layer, and with the layers of a block counted by `numbers`.

    changes: further names to replace, as in `renamed`.
    """
    root = root_of(found) or ""
    model = {name.removeprefix(root): x for name, x in found.tensors.items() if name.startswith(root)}
    beside = {name: x for name, x in found.tensors.items() if not name.startswith(root)}
    model = renamed(_apart(found, model), [*_renumbered(numbers), *changes])
    return Found(found.path, model | beside, found.config)


def write_model(tensors: Mapping[str, Tensor], path: Path, root: str = "") -> None:
    write_file({f"{root}{name}": tensor for name, tensor in tensors.items()}, path)


def _apart(found: Found, model: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """big_vision's scan keeps all layers in one tensor, with an axis for the depth in front."""
    result: dict[str, Tensor] = {}
    for name, tensor in model.items():
        if not name.startswith(STACKED):
            result[name] = tensor
        elif tensor.ndim == 0 or tensor.shape[0] > MAX_DEPTH:
            raise BadCheckpoint(
                f"{found.path} has {name} as {list(tensor.shape)}, but its first side must be the depth, "
                f"{MAX_DEPTH} at most"
            )
        else:
            rest = name.removeprefix(STACKED)
            result |= {f"Transformer/encoderblock_{i}/{rest}": layer for i, layer in enumerate(tensor)}
    return result


def _renumbered(numbers: Numbers) -> list[tuple[str, str]]:
    other = AMONG_ALL if numbers == AMONG_KIND else AMONG_KIND
    kinds = ("MultiHeadDotProductAttention", "LayerNorm", "MlpBlock")  # in the order of Numbers
    block = r"^(Transformer/encoderblock_\d+/)"
    return [(rf"{block}{kind}_{a}/", rf"\g<1>{kind}_{b}/") for kind, a, b in zip(kinds, other, numbers, strict=True)]
