"""Built-in data sets: official file layouts (small copies) and downloads."""

import dataclasses
import gzip
import hashlib
import io
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitreous.data.open import open_data
from vitreous.data.sources.base import Source
from vitreous.data.sources.named import (
    FILES,
    NAMES,
    PUBLISHED,
    class_names,
    open_named,
    open_published,
    read_cifar,
    read_idx,
    read_mat,
)


def test_digits_equal_scikit_learns() -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    original = datasets.load_digits()
    source = open_named("digits", "", None, 0).splits["all"]
    assert np.array_equal(source.labels, original.target)
    pixels = np.stack([np.asarray(source.image(i))[..., 0] for i in range(len(source))])
    assert np.abs(pixels - original.images * 255 / 16).max() <= 0.5
    assert (pixels.min(), pixels.max()) == (0, 255)


def test_digits_hold_out_a_fifth() -> None:
    data = open_data("digits")
    assert (len(data.train), len(data.val), data.test) == (1438, 359, None)
    assert data.classes == tuple("0123456789")
    whole = np.bincount(data.train.labels) + np.bincount(data.val.labels)
    assert np.abs(np.bincount(data.val.labels) / whole - 0.2).max() < 0.005
    names = {s.name(i) for s in (data.train, data.val) for i in range(len(s))}
    assert names == {f"digits[{i}]" for i in range(1797)}
    assert [open_data("digits", seed=1).val.name(i) for i in range(5)] != [data.val.name(i) for i in range(5)]


def test_licence_is_next_to_the_digits_file() -> None:
    text = (FILES / "digits.txt").read_text()
    assert "CC BY 4.0" in text
    assert "BSD 3-Clause" in text
    assert (FILES / "digits.npz").stat().st_size < 100_000


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("digits:size=3", "digits takes no options"),
        ("shapes:sise=3", r"shapes has no option 'sise' \(did you mean 'size'\?\); options: size, count, val"),
        ("shapes:size", "size must be an integer.* got ''"),
        ("shapes:size=large", "size must be an integer.* got 'large'"),
        ("shapes:size=0", "size is 0, but must be an integer from 8 to 4096"),
    ],
)
def test_invalid_options_are_rejected(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        open_data(spec)


def test_folder_takes_precedence_over_a_built_in_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ("digits/a/1.jpg", "digits/b/1.jpg", "digits/a/2.jpg", "digits/b/2.jpg"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    monkeypatch.chdir(tmp_path)
    folder = open_data("digits")
    assert len(folder.classes) == 2
    assert "built-in" in folder.note
    assert "built-in" not in open_data("./digits").note
    assert len(open_data("digits:").classes) == 10
    assert "digits" in NAMES


RANDOM = np.random.default_rng(0)


def cifar(count: int, classes: int, label_bytes: int) -> tuple[bytes, np.ndarray]:
    images = RANDOM.integers(0, 256, (count, 3, 32, 32), np.uint8)
    labels = np.arange(count, dtype=np.uint8) % classes
    rows = [
        bytes([7] * (label_bytes - 1) + [label]) + image.tobytes() for label, image in zip(labels, images, strict=True)
    ]
    return b"".join(rows), images.transpose(0, 2, 3, 1)


def write_cifar10(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    folder.mkdir(parents=True, exist_ok=True)
    train = []
    for i in range(1, 6):
        data, images = cifar(20, 10, 1)
        (folder / f"data_batch_{i}.bin").write_bytes(data)
        train.append(images)
    data, test = cifar(20, 10, 1)
    (folder / "test_batch.bin").write_bytes(data)
    (folder / "batches.meta.txt").write_text("airplane\n")
    return np.concatenate(train), test


def write_idx(path: Path, values: np.ndarray) -> None:
    data = bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def fill(root: Path, paths: list[str]) -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(path)


def pack(path: Path, folder: Path) -> bytes:
    with tarfile.open(path, "w:gz") as tar:
        for entry in sorted(folder.iterdir()):
            tar.add(entry, entry.name)
    return path.read_bytes()


def pixels(source: Source) -> np.ndarray:
    return np.stack([np.asarray(source.image(i)) for i in range(len(source))])


def contents(source: Source) -> dict[str, str]:
    assert all(bytes(source.image(i)).decode() == source.name(i) for i in range(len(source)))
    return {source.name(i): source.classes[source.labels[i]] for i in range(len(source))}


@pytest.mark.parametrize("below", ["", "cifar-10-batches-bin", "cifar10/cifar-10-batches-bin"])
def test_cifar10_binary_version(tmp_path: Path, below: str) -> None:
    train, test = write_cifar10(tmp_path / below)
    data = open_data("cifar10", root=tmp_path)
    assert np.array_equal(pixels(data.train), train)
    assert np.array_equal(pixels(data.val), test)
    assert data.train.labels.tolist() == [*range(10)] * 10
    assert data.classes[:3] == ("airplane", "automobile", "bird")
    assert "test split is used as val" in data.note


def test_cifar10_as_npz_arrays(tmp_path: Path) -> None:
    x, y = RANDOM.integers(0, 256, (20, 32, 32, 3), np.uint8), np.arange(20, dtype=np.uint8) % 10
    np.savez(tmp_path / "cifar10.npz", x_train=x, y_train=y, x_test=x[:10], y_test=y[:10])
    data = open_data("cifar10", root=tmp_path)
    assert data.name == "cifar10"
    assert data.classes == class_names("cifar10")
    assert np.array_equal(pixels(data.train), x)


def test_cifar100_uses_fine_labels(tmp_path: Path) -> None:
    for part in ("train", "test"):
        (tmp_path / f"{part}.bin").write_bytes(cifar(100, 100, 2)[0])
    data = open_data("cifar100", root=tmp_path)
    assert data.train.labels.tolist() == [*range(100)]
    assert (data.classes[0], data.classes[99]) == ("apple", "worm")


def test_pickles_are_not_opened(tmp_path: Path) -> None:
    fill(tmp_path, ["cifar-10-batches-py/data_batch_1"])
    with pytest.raises(
        ValueError, match=r"cifar10 not found in .*cifar-10-batches-py contains pickles, which are never loaded"
    ):
        open_data("cifar10", root=tmp_path)


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("below", ["", "FashionMNIST/raw"])
def test_fashion_mnist(tmp_path: Path, ending: str, below: str) -> None:
    (tmp_path / below).mkdir(parents=True, exist_ok=True)
    images = {word: RANDOM.integers(0, 256, (20, 28, 28), np.uint8) for word in ("train", "t10k")}
    for word, values in images.items():
        write_idx(tmp_path / below / f"{word}-images-idx3-ubyte{ending}", values)
        write_idx(tmp_path / below / f"{word}-labels-idx1-ubyte{ending}", np.arange(20, dtype=np.uint8) % 10)
    data = open_data("fashion-mnist", root=tmp_path)
    assert np.array_equal(pixels(data.train)[..., 0], images["train"])
    assert np.array_equal(pixels(data.val)[..., 0], images["t10k"])
    assert data.classes[9] == "Ankle boot"


def test_pets(tmp_path: Path) -> None:
    lists = {"trainval": ["Abyssinian_1 1 1 1", "american_bulldog_2 2 2 1", "Abyssinian_3 1 1 1"]}
    lists["test"] = ["american_bulldog_4 2 2 1", "Abyssinian_5 1 1 1"]
    fill(tmp_path, [f"images/{line.split()[0]}.jpg" for lines in lists.values() for line in lines])
    (tmp_path / "annotations").mkdir()
    for name, lines in lists.items():
        (tmp_path / "annotations" / f"{name}.txt").write_text("\n".join(["#comment", *lines, ""]))
    data = open_data("pets", root=tmp_path)
    assert data.classes == ("Abyssinian", "american_bulldog")
    assert contents(data.train) == {
        "images/Abyssinian_1.jpg": "Abyssinian",
        "images/american_bulldog_2.jpg": "american_bulldog",
        "images/Abyssinian_3.jpg": "Abyssinian",
    }
    assert len(data.val) == 2
    (tmp_path / "images/Abyssinian_3.jpg").unlink()
    with pytest.raises(ValueError, match=r"pets: 1 of 5 images are missing .* images/Abyssinian_3.jpg"):
        open_data("pets", root=tmp_path)


@pytest.mark.parametrize("below", ["images", "pets/images", "pets"])
def test_pets_as_folders(tmp_path: Path, below: str) -> None:
    paths = [f"{part}/{breed}/{i}.jpg" for part in ("train", "test") for breed in ("pug", "boxer") for i in range(3)]
    fill(tmp_path / below, paths)
    data = open_data("pets", root=tmp_path)
    assert data.name == "pets"
    assert (len(data.train), len(data.val), data.classes) == (6, 6, ("boxer", "pug"))


def write_flowers(root: Path) -> None:
    scipy_io = pytest.importorskip("scipy.io")
    fill(root, [f"jpg/image_{i:05d}.jpg" for i in range(1, 13)])
    labels = np.array([[77, 1, 2, 102] * 3], np.uint8)
    ids = {"trnid": [[3, 1, 2, 4]], "valid": [[8, 7, 6, 5]], "tstid": [[12, 11, 10, 9]]}
    scipy_io.savemat(root / "imagelabels.mat", {"labels": labels}, do_compression=True)
    scipy_io.savemat(root / "setid.mat", {k: np.array(v, np.uint16) for k, v in ids.items()}, do_compression=True)


def test_flowers(tmp_path: Path) -> None:
    write_flowers(tmp_path)
    data = open_data("flowers", root=tmp_path)
    assert contents(data.train) == {
        "jpg/image_00003.jpg": "hard-leaved pocket orchid",
        "jpg/image_00001.jpg": "passion flower",
        "jpg/image_00002.jpg": "pink primrose",
        "jpg/image_00004.jpg": "blackberry lily",
    }
    assert data.test is not None
    assert [data.test.name(i) for i in range(4)] == [f"jpg/image_{i:05d}.jpg" for i in (12, 11, 10, 9)]
    assert data.val.labels.tolist() == [101, 1, 0, 76]


IDS = ["n01440764", "n02102040", "n02979186", "n03000684", "n03028079", "n03394916", "n03417042", "n03425413"]
IDS += ["n03445777", "n03888257"]


@pytest.mark.parametrize("below", ["", "imagenette2-320", "imagenette2-160"])
def test_imagenette(tmp_path: Path, below: str) -> None:
    fill(tmp_path / below, [f"{part}/{wnid}/1.JPEG" for part in ("train", "val") for wnid in IDS])
    data = open_data("imagenette", root=tmp_path)
    assert data.classes[:2] == ("tench", "English springer")
    assert contents(data.train)["train/n03888257/1.JPEG"] == "parachute"
    assert len(data.val) == 10


def serve(web, monkeypatch, name: str, files: dict[str, bytes]) -> None:  # type: ignore[no-untyped-def]
    """Serve the files of a data set from the test server."""
    entries = []
    for url, _ in PUBLISHED[name].files:
        file = url.rpartition("/")[2]
        web.files[f"/{file}"] = files[file]
        entries.append((f"{web.url}/{file}", hashlib.md5(files[file]).hexdigest()))
    monkeypatch.setitem(PUBLISHED, name, dataclasses.replace(PUBLISHED[name], files=tuple(entries)))


def test_data_set_is_downloaded_once_verified_and_unpacked(web, monkeypatch, tmp_path: Path, cache: Path) -> None:  # type: ignore[no-untyped-def]
    train, _ = write_cifar10(tmp_path / "x" / "cifar-10-batches-bin")
    archive = pack(tmp_path / "a.tar.gz", tmp_path / "x")
    serve(web, monkeypatch, "cifar10", {"cifar-10-binary.tar.gz": archive})
    web.breaks = 1
    for _ in range(2):
        assert np.array_equal(pixels(open_data("cifar10").train), train)
    assert [requested_range is None for _, requested_range in web.requests] == [True, False]
    assert not list(cache.rglob("*.tar.gz"))


def test_archives_and_plain_files_are_downloaded(web, monkeypatch, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    write_flowers(tmp_path / "x")
    mats = {name: (tmp_path / "x" / name).read_bytes() for name in ("imagelabels.mat", "setid.mat")}
    for name in mats:
        (tmp_path / "x" / name).unlink()
    packed = {"102flowers.tgz": pack(tmp_path / "a.tgz", tmp_path / "x"), **mats}
    serve(web, monkeypatch, "flowers", packed)
    assert len(open_data("flowers").val) == 4
    # A local copy of the same files, still packed.
    (tmp_path / "local").mkdir()
    for name, body in packed.items():
        (tmp_path / "local" / name).write_bytes(body)
    requests = len(web.requests)
    assert contents(open_data("flowers", root=tmp_path / "local").train) == contents(open_data("flowers").train)
    assert len(web.requests) == requests


def test_damaged_download_is_rejected(web, monkeypatch, tmp_path: Path, cache: Path) -> None:  # type: ignore[no-untyped-def]
    write_cifar10(tmp_path / "x" / "cifar-10-batches-bin")
    serve(web, monkeypatch, "cifar10", {"cifar-10-binary.tar.gz": pack(tmp_path / "a.tar.gz", tmp_path / "x")})
    web.files["/cifar-10-binary.tar.gz"] += b"!"
    with pytest.raises(ValueError, match="checksum mismatch"):
        open_data("cifar10")
    assert not (cache / "data/cifar10/unpacked").exists()


def test_archive_cannot_write_outside_its_folder(web, monkeypatch, tmp_path: Path, cache: Path) -> None:  # type: ignore[no-untyped-def]
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        info = tarfile.TarInfo("../../../escaped.txt")
        info.size = 1
        tar.addfile(info, io.BytesIO(b"x"))
    serve(web, monkeypatch, "cifar10", {"cifar-10-binary.tar.gz": out.getvalue()})
    with pytest.raises(ValueError, match="cannot be unpacked"):
        open_data("cifar10")
    assert not list(cache.parent.rglob("escaped.txt"))


@pytest.mark.parametrize("name", PUBLISHED)
def test_error_without_network_names_the_data_root(web, monkeypatch, name: str) -> None:  # type: ignore[no-untyped-def]
    entries = tuple((f"{web.url}/{url.rpartition('/')[2]}", digest) for url, digest in PUBLISHED[name].files)
    monkeypatch.setitem(PUBLISHED, name, dataclasses.replace(PUBLISHED[name], files=entries))
    with pytest.raises(
        OSError, match=rf"{name}: could not download {web.url}/.*; use --data-root DIR to read a local copy"
    ) as caught:
        open_data(name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", PUBLISHED)
def test_root_without_the_data_set_is_rejected(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} not found in .*; expected one of "):
        open_published(name, tmp_path)
    with pytest.raises(ValueError, match="is not a folder"):
        open_published(name, tmp_path / "none")


def test_urls_and_checksums_are_well_formed() -> None:
    for published in PUBLISHED.values():
        for url, checksum in published.files:
            assert url.startswith(("https://", "http://fashion-mnist.s3"))
            assert len(checksum) == 32
            assert int(checksum, 16) >= 0


RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize("label_bytes", [1, 2])
def test_cifar_files_are_parsed_and_checked(tmp_path: Path, label_bytes: int) -> None:
    images, labels = RANDOM.integers(0, 256, (7, 32, 32, 3), np.uint8), RANDOM.integers(0, 100, 7, np.uint8)
    records = b"".join(
        bytes([99] * (label_bytes - 1) + [label]) + b"".join(image[:, :, channel].tobytes() for channel in range(3))
        for image, label in zip(images, labels.tolist(), strict=True)
    )
    half = 3 * (label_bytes + 3072)
    (tmp_path / "1").write_bytes(records[:half])
    (tmp_path / "2").write_bytes(records[half:])
    found = read_cifar([tmp_path / "1", tmp_path / "2"], label_bytes)
    assert np.array_equal(found[0], images)
    assert np.array_equal(found[1], labels)
    (tmp_path / "2").write_bytes(records[half:-1])
    with pytest.raises(ValueError, match="must be a positive multiple of"):
        read_cifar([tmp_path / "1", tmp_path / "2"], label_bytes)


@pytest.mark.parametrize("shape", [(9,), (5, 4, 3)])
@pytest.mark.parametrize("packed", [True, False])
def test_idx_files_are_parsed_and_checked(tmp_path: Path, shape: tuple[int, ...], packed: bool) -> None:
    values = RANDOM.integers(0, 256, shape, np.uint8)
    data = bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + values.tobytes()
    path = tmp_path / ("x.gz" if packed else "x")
    path.write_bytes(gzip.compress(data) if packed else data)
    assert np.array_equal(read_idx(path), values)
    path.write_bytes(gzip.compress(data[:-1]) if packed else data[:-1])
    with pytest.raises(ValueError, match="but its header declares"):
        read_idx(path)
    path.write_bytes(b"\x1f\x8bnonsense")
    with pytest.raises(ValueError, match=r"unpacked|not a uint8 IDX"):
        read_idx(path)


@settings(deadline=None, max_examples=40)
@given(
    st.dictionaries(
        st.from_regex("[a-z]{1,20}", fullmatch=True), st.lists(st.integers(0, 65535), min_size=1), min_size=1
    ),
    st.booleans(),
    st.sampled_from(["u1", "u2", "i4", "f8"]),
)
def test_mat_files_written_by_scipy_are_read(tmp_path_factory, arrays, compress, kind) -> None:  # type: ignore[no-untyped-def]
    scipy_io = pytest.importorskip("scipy.io")
    path = tmp_path_factory.mktemp("mat") / "a.mat"
    values = {name: np.array(numbers).astype(kind) for name, numbers in arrays.items()}
    scipy_io.savemat(path, values, do_compression=compress)
    found = read_mat(path)
    assert found.keys() == values.keys()
    for name, numbers in values.items():
        assert np.array_equal(found[name], numbers)


def test_file_that_is_not_mat_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "a.mat").write_bytes(b"MATLAB 7.3 and something else" * 10)
    with pytest.raises(ValueError, match="not a little-endian MATLAB 5 file"):
        read_mat(tmp_path / "a.mat")
    (tmp_path / "a.mat").write_bytes(b"MATLAB 5.0".ljust(126) + b"IM" + b"\x0f\0\0\0\x10\0\0\0nonsensenonsense")
    with pytest.raises(ValueError, match="cannot be read as a MATLAB file"):
        read_mat(tmp_path / "a.mat")
