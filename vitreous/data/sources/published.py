"""Well-known data sets, from their official addresses or from a local copy.

They are downloaded once, compared with the published checksums and unpacked into the cache. A local copy may be the
official files, packed or not, or something simpler: `NAME.npz`, or a folder of pictures.
Pickles are never opened, so CIFAR's "python version" is not read; its binary version holds the same.
"""

import hashlib
import json
import re
import shutil
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitreous.data.sources.arrays import from_arrays, open_arrays
from vitreous.data.sources.download import cache_folder, fetch, only_one
from vitreous.data.sources.folders import open_folder
from vitreous.data.sources.published_formats import read_cifar, read_idx, read_mat
from vitreous.data.sources.stored import FileSource, missing_files
from vitreous.data.split import Found, by_part, listed

MAX_BYTES = 1 << 30  # of one published file: the largest, the images of pets, has 0.8 GB


@dataclass(frozen=True)
class Published:
    """Addresses with their checksums; a path by which the unpacked files are known, the folders they may lie in
    (the first is where unpacking puts them), and how they are read from there."""

    files: tuple[tuple[str, str], ...]
    landmark: str
    folders: tuple[str, ...]
    read: Callable[[Path], Found]


def open_published(name: str, root: Path | None) -> Found:
    """The data set of that name, from `root` if it is given, otherwise from the cache or its address."""
    published = PUBLISHED[name]
    if root is not None:
        return _open_local(name, published, root)
    cache = cache_folder("data", name)
    with only_one(cache / "download"):
        if not (cache / "unpacked").exists():
            try:
                files = [fetch(url, cache / Path(url).name, checksum, MAX_BYTES) for url, checksum in published.files]
            except OSError as error:
                raise OSError(f"{name}: {error}; with --data-root DIR a local copy is used") from None
            unpack(files, cache / "unpacked")
            for file in files:
                file.unlink()
    return _read_from(published, [cache / "unpacked"])


def unpack(files: Sequence[Path], target: Path) -> Path:
    """The contents of archives, and other files as they are, in one folder that appears when all of it is there."""
    with only_one(target):
        if target.exists():
            return target
        part = target.with_name(target.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        for file in files:
            if file.name.endswith((".tgz", ".tar.gz")):
                try:
                    with tarfile.open(file) as tar:
                        tar.extractall(part, filter="data")
                except (tarfile.TarError, EOFError) as error:
                    raise ValueError(f"{file} cannot be unpacked: {error}") from None
            else:
                shutil.copy(file, part)
        part.replace(target)
    return target


def class_names(name: str) -> tuple[str, ...]:
    return tuple(json.loads((Path(__file__).parent / "files" / "classes.json").read_text())[name])


def _open_local(name: str, published: Published, root: Path) -> Found:
    if not root.is_dir():
        raise ValueError(f"the data root {root} is not a folder")
    bases = [base for base in (root, root / name) if base.is_dir()]
    for base in bases:
        if (base / f"{name}.npz").is_file():
            found = open_arrays(base / f"{name}.npz", class_names(name))
            found.name = name
            return found
    if any(_places(published, bases)):
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
                found = open_folder(folder)
                found.name = name
                return found
    pickles = [path.name for path in root.glob("cifar-10*-py*")]
    wanted = [f"{name}.npz", f"{published.folders[0]}/{published.landmark}", Path(published.files[0][0]).name, "train/"]
    raise ValueError(
        f"the data root {root} has no copy of {name}: none of {listed(wanted)} is there"
        + (f" ({pickles[0]} holds pickles, which are never opened)" if pickles else "")
    )


def _places(published: Published, bases: Sequence[Path]) -> Iterator[Path]:
    for base in bases:
        for folder in (base, *(base / name for name in published.folders)):
            if any(folder.glob(published.landmark)):
                yield folder


def _read_from(published: Published, bases: Sequence[Path]) -> Found:
    place = next(_places(published, bases), None)
    if place is None:
        raise ValueError(f"{bases[0]} has no {published.folders[0]}/{published.landmark}: remove it, and try again")
    return published.read(place)


def _cifar10(folder: Path) -> Found:
    train = read_cifar([folder / f"data_batch_{i}.bin" for i in range(1, 6)], label_bytes=1)
    test = read_cifar([folder / "test_batch.bin"], label_bytes=1)
    return from_arrays("cifar10", {"train": train, "test": test}, class_names("cifar10"))


def _cifar100(folder: Path) -> Found:
    parts = {part: read_cifar([folder / f"{part}.bin"], label_bytes=2) for part in ("train", "test")}
    return from_arrays("cifar100", parts, class_names("cifar100"))


def _fashion_mnist(folder: Path) -> Found:
    def read(stem: str) -> np.ndarray:
        packed = folder / f"{stem}.gz"
        return read_idx(packed if packed.exists() else folder / stem)

    words = {"train": "train", "test": "t10k"}
    parts = {p: (read(f"{w}-images-idx3-ubyte"), read(f"{w}-labels-idx1-ubyte")) for p, w in words.items()}
    return from_arrays("fashion-mnist", parts, class_names("fashion-mnist"))


def _pets(folder: Path) -> Found:
    """Lines of `Abyssinian_100 1 1 1`: a picture, and the number of its breed from 1."""
    rows, breeds = [], {}
    for part, file in (("train", "trainval.txt"), ("test", "test.txt")):
        for line in (folder / "annotations" / file).read_text().splitlines():
            if line.strip() and not line.startswith("#"):
                name, number, *_ = line.split()
                breeds[int(number) - 1] = re.sub(r"_\d+$", "", name)
                rows.append((part, f"images/{name}.jpg", int(number) - 1))
    return _files("pets", folder, rows, tuple(breeds[i] for i in sorted(breeds)))


def _flowers(folder: Path) -> Found:
    """Numbers of pictures for each part, and the class of every picture, from 1."""
    labels, ids = read_mat(folder / "imagelabels.mat")["labels"], read_mat(folder / "setid.mat")
    keys = {"train": "trnid", "val": "valid", "test": "tstid"}
    rows = [
        (part, f"jpg/image_{number:05d}.jpg", int(labels[number - 1]) - 1)
        for part, key in keys.items()
        for number in ids[key].astype(np.int64).tolist()
    ]
    return _files("flowers", folder, rows, class_names("flowers"))


def _imagenette(folder: Path) -> Found:
    """Folders named by WordNet ids, in whose order the classes are."""
    found = open_folder(folder)
    found.name = "imagenette"
    for source in found.parts.values():
        if len(source.classes) == 10:
            source.classes = class_names("imagenette")
    return found


def _files(name: str, folder: Path, rows: list[tuple[str, str, int]], classes: tuple[str, ...]) -> Found:
    parts, paths, labels = zip(*rows, strict=True)
    source = FileSource(folder, paths, np.array(labels, np.int64), classes)
    problems = []
    if missing := sorted(missing_files(folder, paths)):
        first = paths[missing[0]]
        problems.append(f"{len(missing):,} of {len(paths):,} pictures are missing below {folder}, the first: {first}")
    return Found(name, by_part(source, parts), problems=problems)


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
