"""Features kept on disk, found again by what they depend on: the encoder, the pictures, and how they were computed.

A file is `features-<digest>.safetensors`. Whatever changes the features changes the digest, so a file is never stale:
other weights, another config (so another image size or preprocessing), other pictures or labels, another precision.
Pictures on disk are told apart by name, size and time of change, and are not read for it.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

import vitreous
from vitreous.common.atomic_files import atomic_file
from vitreous.common.checks import fail
from vitreous.common.codec import to_dict
from vitreous.data.sources.base import FileSource, Source, SpanSource, Subset
from vitreous.evaluation.features import FeatureSet, Kind, extract
from vitreous.model.resnet import ResNet
from vitreous.model.vit import ViT

DTYPES = {torch.float32: "F32", torch.float16: "F16", torch.int64: "I64"}


def cached_features(
    folder: Path | None,
    model: ViT | ResNet,
    source: Source,
    device: torch.device,
    precision: torch.dtype = torch.float32,
    *,
    kind: Kind = "pooled",
    batch_size: int = 64,
    workers: int = 2,
    flip: bool = False,
) -> tuple[FeatureSet, bool]:
    """As `extract`, and whether the features came from the folder; what was not there is put there.

    A file that is damaged counts as not there. Without a folder nothing is read or written.
    """
    how: dict[str, Any] = {"kind": kind, "flip": flip}
    file = None
    if folder is not None:
        if folder.is_file():
            fail("cache", folder, "a folder, and not a file")
        folder.mkdir(parents=True, exist_ok=True)  # a folder that cannot be is said before the work, not after it
        file = folder / f"features-{digest(model, source, precision=str(precision), **how)}.safetensors"
        if (found := read_features(file)) is not None:
            return found, True
    features = extract(model, source, device, precision, batch_size=batch_size, workers=workers, **how)
    if file is not None:
        write_features(features, file)
    return features, False


def write_features(features: FeatureSet, file: Path) -> None:
    """A safetensors file: the length of a header, the header, the numbers.

    The library's own writer would put a new file, which only its owner may read, in place of the one that
    `atomic_file` has locked.
    """
    tensors = {"features": features.features.contiguous(), "labels": features.labels.contiguous()}
    header: dict[str, Any] = {"__metadata__": {"problems": json.dumps(features.problems)}}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with atomic_file(file, needed=end) as aside, open(aside, "wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            stream.write(tensor.numpy().data)


def read_features(file: Path) -> FeatureSet | None:
    """The features of a file, memory-mapped; None where there are none, or not whole."""
    try:
        with safe_open(file, framework="pt") as opened:
            problems = json.loads((opened.metadata() or {})["problems"])
            features, labels = opened.get_tensor("features"), opened.get_tensor("labels")
    except (SafetensorError, OSError, KeyError, ValueError):
        return None
    if features.ndim != 2 or labels.shape != features.shape[:1]:
        return None
    return FeatureSet(features, labels, tuple(problems))


def digest(model: ViT | ResNet, source: Source, **how: object) -> str:
    """32 hexadecimal digits for all that features depend on."""
    total = hashlib.sha256(json.dumps([vitreous.__version__, to_dict(model.config), how], sort_keys=True).encode())
    for name, tensor in sorted(model.state_dict().items()):
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    for stamp in _stamps(source):
        total.update(len(stamp).to_bytes(8, "little") + stamp)
    return total.hexdigest()[:32]


def _stamps(source: Source) -> Iterator[bytes]:
    yield repr(source.classes).encode()
    yield source.labels.tobytes()
    for index in range(len(source)):
        yield os.fsencode(source.name(index))
        yield _stamp(source, index)


def _stamp(source: Source, index: int) -> bytes:
    """Something that changes when a picture does: of a file its size and time of change, of pixels the pixels."""
    if isinstance(source, Subset):
        return _stamp(source.source, int(source.indices[index]))
    if isinstance(source, FileSource):
        return _file_stamp(source.root / source.paths[index])
    if isinstance(source, SpanSource):
        return _file_stamp(Path(source.files[source.spans[index, 0]])) + source.spans[index, 1:].tobytes()
    picture = source.image(index)
    return picture if isinstance(picture, bytes) else repr(picture.shape).encode() + picture.tobytes()


def _file_stamp(path: Path) -> bytes:
    try:
        status = os.stat(path)
    except OSError:  # will be named as unreadable
        return b"missing"
    return f"{status.st_size} {status.st_mtime_ns}".encode()
