"""Built-in data sets: `digits` and `shapes`, which come with the package, and published data such as CIFAR-10.

Published data sets are downloaded once from their official URLs, verified against the published checksums and unpacked
into the cache. A local copy can be the official files (packed or unpacked), `NAME.npz` or an image folder. Pickles are
never loaded, so CIFAR's "python version" is not supported; use the binary version. `shapes` takes options, e.g.
`shapes:size=96,count=4000`.
"""

import gzip
import hashlib
import json
import math
import re
import shutil
import struct
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from vitreous.common.checks import suggestion
from vitreous.common.text import listed
from vitreous.data.sources.arrays import from_arrays, open_arrays, read_npz
from vitreous.data.sources.base import UNSPLIT, FileSource, FoundData, by_split, missing_files
from vitreous.data.sources.download import cache_folder, fetch, file_lock
from vitreous.data.sources.folders import open_folder
from vitreous.data.sources.shapes import open_shapes

FILES = Path(__file__).parent / "files"
MAX_BYTES = 1 << 30  # limit per published file; the largest (the pets images) is 0.8 GB
OPTIONS = {"shapes": ("size", "count", "val")}


def open_named(name: str, options: str, root: Path | None, seed: int) -> FoundData:
    """Open a built-in data set. `options` is the text after the colon, e.g. `size=96,count=4000`."""
    chosen = parse_options(name, options)
    if name == "digits":  # 1,797 handwritten digits, 8 x 8 grey; see files/digits.txt for source and licence
        arrays = read_npz(FILES / "digits.npz")
        return from_arrays("digits", {UNSPLIT: (arrays["images"], arrays["labels"])}, None)
    if name == "shapes":
        return open_shapes(chosen, seed)
    return open_published(name, root)


def parse_options(name: str, options: str) -> dict[str, int]:
    """Parse `key=integer` pairs, separated by commas."""
    allowed = OPTIONS.get(name, ())
    if options and not allowed:
        raise ValueError(f"{name} takes no options, got {options!r}")
    chosen = {}
    for option in options.split(",") if options else ():
        key, _, value = option.partition("=")
        if key not in allowed:
            raise ValueError(f"{name} has no option {key!r}{suggestion(key, allowed)}; options: {', '.join(allowed)}")
        if not value.isdecimal():
            raise ValueError(f"{name}: {key} must be an integer, e.g. {name}:{key}=96, got {value!r}")
        chosen[key] = int(value)
    return chosen


def class_names(name: str) -> tuple[str, ...]:
    return tuple(json.loads((FILES / "classes.json").read_text())[name])


# ---- Published data sets ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Published:
    """A data set that can be downloaded."""

    files: tuple[tuple[str, str], ...]  # (URL, checksum) pairs
    landmark: str  # path pattern that identifies the unpacked files
    folders: tuple[str, ...]  # folders that may contain the unpacked files; the first is the folder in the archive
    read: Callable[[Path], FoundData]


def open_published(name: str, root: Path | None) -> FoundData:
    """Open a published data set from `root` if given, otherwise from the cache, downloading it if necessary."""
    published = PUBLISHED[name]
    if root is not None:
        return _open_local(name, published, root)
    cache = cache_folder("data", name)
    with file_lock(cache / "download"):
        if not (cache / "unpacked").exists():
            try:
                files = [fetch(url, cache / Path(url).name, checksum, MAX_BYTES) for url, checksum in published.files]
            except OSError as error:
                raise OSError(f"{name}: {error}; use --data-root DIR to read a local copy") from None
            unpack(files, cache / "unpacked")
            for file in files:
                file.unlink()
    return _read_from(published, [cache / "unpacked"])


def unpack(files: Sequence[Path], target: Path) -> Path:
    """Unpack archives and copy other files into `target`.

    Do nothing if `target` exists, because it is created only when complete.
    """
    with file_lock(target):
        if target.exists():
            return target
        aside = target.with_name(target.name + ".part")
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        for file in files:
            if file.name.endswith((".tgz", ".tar.gz")):
                try:
                    with tarfile.open(file) as tar:
                        tar.extractall(aside, filter="data")
                except (tarfile.TarError, EOFError) as error:
                    raise ValueError(f"{file} cannot be unpacked: {error}") from None
            else:
                shutil.copy(file, aside)
        aside.replace(target)
    return target


def _open_local(name: str, published: Published, root: Path) -> FoundData:
    if not root.is_dir():
        raise ValueError(f"data root {root} is not a folder")
    bases = [base for base in (root, root / name) if base.is_dir()]
    for base in bases:
        if (base / f"{name}.npz").is_file():
            return replace(open_arrays(base / f"{name}.npz", class_names(name)), name=name)
    if any(_candidates(published, bases)):
        return _read_from(published, bases)
    for base in bases:
        files = [base / Path(url).name for url, _ in published.files]
        if all(file.is_file() for file in files):
            stats = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
            key = hashlib.sha256(repr(stats).encode()).hexdigest()[:16]
            return _read_from(published, [unpack(files, cache_folder("data", "local") / key)])
    for base in bases:
        for folder in (base, base / "images"):
            if (folder / "train").is_dir():
                return replace(open_folder(folder), name=name)
    pickles = [path.name for path in root.glob("cifar-10*-py*")]
    wanted = [f"{name}.npz", f"{published.folders[0]}/{published.landmark}", Path(published.files[0][0]).name, "train/"]
    raise ValueError(
        f"{name} not found in {root}; expected one of {listed(wanted)}"
        + (f" ({pickles[0]} contains pickles, which are never loaded)" if pickles else "")
    )


def _candidates(published: Published, bases: Sequence[Path]) -> Iterator[Path]:
    for base in bases:
        for folder in (base, *(base / name for name in published.folders)):
            if any(folder.glob(published.landmark)):
                yield folder


def _read_from(published: Published, bases: Sequence[Path]) -> FoundData:
    folder = next(_candidates(published, bases), None)
    if folder is None:
        raise ValueError(f"{bases[0]} has no {published.folders[0]}/{published.landmark}; delete {bases[0]} and retry")
    return published.read(folder)


def _cifar10(folder: Path) -> FoundData:
    train = read_cifar([folder / f"data_batch_{i}.bin" for i in range(1, 6)], label_bytes=1)
    test = read_cifar([folder / "test_batch.bin"], label_bytes=1)
    return from_arrays("cifar10", {"train": train, "test": test}, class_names("cifar10"))


def _cifar100(folder: Path) -> FoundData:
    splits = {split: read_cifar([folder / f"{split}.bin"], label_bytes=2) for split in ("train", "test")}
    return from_arrays("cifar100", splits, class_names("cifar100"))


def _fashion_mnist(folder: Path) -> FoundData:
    def read(stem: str) -> np.ndarray:
        packed = folder / f"{stem}.gz"
        return read_idx(packed if packed.exists() else folder / stem)

    words = {"train": "train", "test": "t10k"}
    splits = {split: (read(f"{w}-images-idx3-ubyte"), read(f"{w}-labels-idx1-ubyte")) for split, w in words.items()}
    return from_arrays("fashion-mnist", splits, class_names("fashion-mnist"))


def _pets(folder: Path) -> FoundData:
    """Read Oxford-IIIT Pets. Lines such as `Abyssinian_100 1 1 1` contain the image name and breed number (from 1)."""
    rows, breeds = [], {}
    for split, file in (("train", "trainval.txt"), ("test", "test.txt")):
        for line in (folder / "annotations" / file).read_text().splitlines():
            if line.strip() and not line.startswith("#"):
                name, number, *_ = line.split()
                breeds[int(number) - 1] = re.sub(r"_\d+$", "", name)
                rows.append((split, f"images/{name}.jpg", int(number) - 1))
    return _from_files("pets", folder, rows, tuple(breeds[i] for i in sorted(breeds)))


def _flowers(folder: Path) -> FoundData:
    """Read Flowers-102 from the image numbers of each split and the class number of each image. Numbers start at 1."""
    labels, ids = read_mat(folder / "imagelabels.mat")["labels"], read_mat(folder / "setid.mat")
    keys = {"train": "trnid", "val": "valid", "test": "tstid"}
    rows = [
        (split, f"jpg/image_{number:05d}.jpg", int(labels[number - 1]) - 1)
        for split, key in keys.items()
        for number in ids[key].astype(np.int64).tolist()
    ]
    return _from_files("flowers", folder, rows, class_names("flowers"))


def _imagenette(folder: Path) -> FoundData:
    """Read Imagenette. Class folders are named by WordNet id; classes.json lists the class names in the same order."""
    found = replace(open_folder(folder), name="imagenette")
    for source in found.splits.values():
        if len(source.classes) == 10:
            source.classes = class_names("imagenette")
    return found


def _from_files(name: str, folder: Path, rows: list[tuple[str, str, int]], classes: tuple[str, ...]) -> FoundData:
    splits, paths, labels = zip(*rows, strict=True)
    source = FileSource(folder, paths, np.array(labels, np.int64), classes)
    problems = []
    if missing := sorted(missing_files(folder, paths)):
        first = paths[missing[0]]
        problems.append(f"{len(missing):,} of {len(paths):,} images are missing in {folder}, e.g. {first}")
    return FoundData(name, by_split(source, splits), problems=problems)


_TORONTO = "https://www.cs.toronto.edu/~kriz"
_ZALANDO = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
_OXFORD = "https://www.robots.ox.ac.uk/~vgg/data"

PUBLISHED = {
    "cifar10": Published(
        ((f"{_TORONTO}/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),),
        "test_batch.bin",
        ("cifar-10-batches-bin",),
        _cifar10,
    ),
    "cifar100": Published(
        ((f"{_TORONTO}/cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),),
        "test.bin",
        ("cifar-100-binary",),
        _cifar100,
    ),
    "fashion-mnist": Published(
        (
            (f"{_ZALANDO}/train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
            (f"{_ZALANDO}/train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe"),
            (f"{_ZALANDO}/t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79"),
            (f"{_ZALANDO}/t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310"),
        ),
        "train-images-idx3-ubyte*",
        ("FashionMNIST/raw", "raw"),
        _fashion_mnist,
    ),
    "pets": Published(
        (
            (f"{_OXFORD}/pets/data/images.tar.gz", "5c4f3ee8e5d25df40f4fd59a7f44e54c"),
            (f"{_OXFORD}/pets/data/annotations.tar.gz", "95a8c909bbe2e81eed6a22bccdf3f68f"),
        ),
        "annotations/trainval.txt",
        ("oxford-iiit-pet",),
        _pets,
    ),
    "flowers": Published(
        (
            (f"{_OXFORD}/flowers/102/102flowers.tgz", "52808999861908f626f3c1f4e79d11fa"),
            (f"{_OXFORD}/flowers/102/imagelabels.mat", "e0620be6f572b9609742df49c70aed4d"),
            (f"{_OXFORD}/flowers/102/setid.mat", "a5357ecc9cb78c4bef273ce3793fc85c"),
        ),
        "jpg/image_00001.jpg",
        ("flowers-102",),
        _flowers,
    ),
    "imagenette": Published(
        (("https://s3.amazonaws.com/fast-ai-imageclas/imagenette2-320.tgz", "3df6f0d01a2c9592104656642f5e78a3"),),
        "train/n01440764",
        ("imagenette2-320", "imagenette2", "imagenette2-160"),
        _imagenette,
    ),
}
NAMES = ("digits", "shapes", *PUBLISHED)


# ---- File formats ----------------------------------------------------------------------------------------------------


def read_cifar(files: Sequence[Path], label_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Read CIFAR's binary version. A record is one or two label bytes (the fine label last) and a 3 x 32 x 32 image."""
    record = label_bytes + 3 * 32 * 32
    for file in files:
        if file.stat().st_size == 0 or file.stat().st_size % record:
            raise ValueError(f"{file}: size must be a positive multiple of {record} bytes, got {file.stat().st_size:,}")
    rows = np.concatenate([np.fromfile(file, np.uint8) for file in files]).reshape(-1, record)
    images = rows[:, label_bytes:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), rows[:, label_bytes - 1].copy()


def read_idx(path: Path) -> np.ndarray:
    """Read MNIST's IDX format, gzipped or not: two zero bytes, type (8: uint8), dimensions, values."""
    data = path.read_bytes()
    if path.suffix == ".gz":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{path} cannot be unpacked: {error}") from None
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise ValueError(f"{path} is not a uint8 IDX file")
    shape = struct.unpack_from(f">{data[3]}I", data, 4)
    values = np.frombuffer(data, np.uint8, offset=4 + 4 * len(shape))
    if values.size != math.prod(shape):
        raise ValueError(f"{path} has {values.size:,} values, but its header declares {' x '.join(map(str, shape))}")
    return values.reshape(shape)


# Numeric types in MATLAB 5 files, by type code.
_NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_MATRIX, _COMPRESSED = 14, 15


def read_mat(path: Path) -> dict[str, np.ndarray]:
    """Read the numeric arrays of a MATLAB 5 file. Return the flattened arrays by name."""
    data = path.read_bytes()
    if not data.startswith(b"MATLAB 5.0") or data[126:128] != b"IM":
        raise ValueError(f"{path} is not a little-endian MATLAB 5 file")
    found = {}
    try:
        for kind, body in _elements(data[128:]):
            for inner, matrix in _elements(zlib.decompress(body)) if kind == _COMPRESSED else [(kind, body)]:
                if inner == _MATRIX:
                    _, _, (_, name), (code, values) = list(_elements(matrix))[:4]  # flags, dimensions, name, values
                    found[name.decode()] = np.frombuffer(values, f"<{_NUMBERS[code]}")
    except (struct.error, zlib.error, ValueError, KeyError) as error:
        raise ValueError(f"{path} cannot be read as a MATLAB file: {error}") from None
    return found


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (type, data) of each MATLAB element.

    Data of up to 4 bytes is in the element's header. Longer data is padded to a multiple of 8 bytes.
    """
    at = 0
    while at < len(data):
        kind, size = struct.unpack_from("<II", data, at)
        if kind >> 16:
            yield kind & 0xFFFF, data[at + 4 : at + 4 + (kind >> 16)]
            at += 8
        else:
            yield kind, data[at + 8 : at + 8 + size]
            at += 8 + size + (-size % 8 if kind != _COMPRESSED else 0)
