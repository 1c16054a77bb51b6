import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from images import encoded
from vitreous.data.doctor import check_data
from vitreous.data.open import open_data
from vitreous.data.sources.base import Source
from vitreous.data.sources.shards import expand, list_members


def write(path: Path, members: dict[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, body in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(body)
            tar.addfile(info, io.BytesIO(body))
    return path


def samples(start: int, count: int, classes: int = 2) -> dict[str, bytes]:
    files = {}
    for i in range(start, start + count):
        files[f"{i:06d}.jpg"] = f"image {i}".encode()
        files[f"{i:06d}.cls"] = f"{i % classes}\n".encode()
    return files


def contents(source: Source) -> dict[bytes, str]:
    return {bytes(source.image(i)): source.classes[source.labels[i]] for i in range(len(source))}


def test_braces_globs_folders_and_lists_are_equivalent(tmp_path: Path) -> None:
    for n in range(3):
        write(tmp_path / f"data-{n:03d}.tar", samples(10 * n, 10))
    specs = [
        f"{tmp_path}/data-{{000..002}}.tar",
        f"{tmp_path}/data-*.tar",
        str(tmp_path),
        "::".join(f"{tmp_path}/data-{n:03d}.tar" for n in range(3)),
    ]
    expected = {f"image {i}".encode(): str(i % 2) for i in range(30)}
    for spec in specs:
        data = open_data(spec)
        assert contents(data.train) | contents(data.val) == expected
        assert (len(data.train), len(data.val)) == (24, 6)
    assert open_data(specs[0]).train.name(0) == "data-000.tar/000000.jpg"
    relative = open_data("data-{000..002}.tar", root=tmp_path)
    assert contents(relative.val) == contents(data.val)


def test_samples_can_be_read_in_any_order(tmp_path: Path) -> None:
    write(tmp_path / "a.tar", samples(0, 40, 4))
    source = open_data(str(tmp_path / "a.tar")).train
    order = np.random.default_rng(0).permutation(len(source)).tolist()
    read = {i: source.image(i) for i in order}
    for i in range(len(source)):
        number = int(source.name(i).split("/")[1].split(".")[0])
        assert read[i] == f"image {number}".encode()
        assert source.labels[i] == number % 4


def test_splits_by_name_and_by_folder(tmp_path: Path) -> None:
    write(tmp_path / "imagenet-train-00.tar", samples(0, 4))
    write(tmp_path / "imagenet-val-00.tar", samples(4, 2))
    data = open_data(f"{tmp_path}/imagenet-{{train,val}}-00.tar")
    assert (len(data.train), len(data.val)) == (4, 2)
    write(tmp_path / "deep/train/0.tar", samples(0, 6))
    write(tmp_path / "deep/test/0.tar", samples(6, 4))
    data = open_data(str(tmp_path / "deep"))
    assert (len(data.train), len(data.val)) == (6, 4)


def test_json_labels_are_read_and_other_members_ignored(tmp_path: Path) -> None:
    files = {}
    for i, label in enumerate(["dog", "cat"] * 3):
        files[f"d/{i}.JPG"] = f"{i}".encode()
        files[f"d/{i}.seg.png"] = b"a mask"
        files[f"d/{i}.json"] = json.dumps({"label": label, "width": 3}).encode()
        files[f"e/{i}.png"] = f"e{i}".encode()
        files[f"e/{i}.json"] = json.dumps({"label": "owl"}).encode()
    data = open_data(str(write(tmp_path / "a.tar", files)))
    assert data.classes == ("cat", "dog", "owl")
    found = contents(data.train) | contents(data.val)
    assert found == {f"{i}".encode(): ["dog", "cat"][i % 2] for i in range(6)} | {
        f"e{i}".encode(): "owl" for i in range(6)
    }


def test_class_names_are_read_from_a_file_next_to_the_shards(tmp_path: Path) -> None:
    write(tmp_path / "a.tar", samples(0, 10, 2))
    (tmp_path / "classnames.txt").write_text("tench\ngoldfish\nshark\n")
    data = open_data(str(tmp_path))
    assert data.classes == ("tench", "goldfish", "shark")
    assert set(data.train.labels.tolist()) == {0, 1}
    assert "1 of 3 classes have no images" in data.note


def test_numeric_labels_are_ordered_numerically(tmp_path: Path) -> None:
    data = open_data(str(write(tmp_path / "a.tar", samples(0, 24, 12))))
    assert data.classes == tuple(str(i) for i in range(12))


def test_shards_written_by_webdataset_are_read(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    with webdataset.TarWriter(str(tmp_path / "a.tar")) as sink:
        for i in range(20):
            sink.write({"__key__": f"sample{i:04d}", "jpg": f"image {i}".encode(), "cls": i % 2})
    data = open_data(str(tmp_path / "a.tar"))
    assert contents(data.train) | contents(data.val) == {f"image {i}".encode(): str(i % 2) for i in range(20)}


def test_shards_at_a_url_are_downloaded_once(web, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    for n in range(2):
        web.files[f"/set/train-{n}.tar"] = write(tmp_path / "x.tar", samples(10 * n, 10)).read_bytes()
    web.files["/set/val-0.tar"] = write(tmp_path / "x.tar", samples(20, 4)).read_bytes()
    web.breaks = 1
    spec = f"{web.url}/set/train-{{0..1}}.tar::{web.url}/set/val-0.tar"
    data = open_data(spec)
    assert (len(data.train), len(data.val)) == (20, 4)
    assert contents(data.train) == {f"image {i}".encode(): str(i % 2) for i in range(20)}
    requests = len(web.requests)
    open_data(spec)
    assert len(web.requests) == requests == 4


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"1.txt": b""}, "no images found in 1 shard"),
        ({"1.jpg": b"", "2.jpg": b"", "2.cls": b"0"}, "1 of 2 rows have no label; first rows: 1"),
        ({"1.jpg": b"", "1.cls": b"cat"}, r"1.cls must be an integer, got b'cat'"),
        ({"1.jpg": b"", "1.json": b"{"}, r"1.json must be valid JSON, got b'{'"),
        ({"1.jpg": b"", "1.json": b"[" * 100_000}, r"1.json must be valid JSON"),
        ({"1.jpg": b"", "1.cls": b"0"}, "only one class, '0'"),
    ],
)
def test_invalid_shards_are_rejected(tmp_path: Path, files: dict[str, bytes], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        open_data(str(write(tmp_path / "a.tar", files)))


def test_missing_shard_is_reported(tmp_path: Path) -> None:
    write(tmp_path / "a-0.tar", samples(0, 4))
    with pytest.raises(ValueError, match=r"shard '.*a-1.tar' not found"):
        open_data(f"{tmp_path}/a-{{0..1}}.tar")
    with pytest.raises(ValueError, match=r"shard .* not found"):
        open_data(f"{tmp_path}/b-*.tar")


def test_changed_shard_is_detected(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", samples(0, 10))
    source = open_data(str(path)).train
    path.write_bytes(path.read_bytes()[:600])
    with pytest.raises(OSError, match="was modified"):
        source.image(len(source) - 1)


def test_brace_expansion() -> None:
    assert expand("a.tar") == ["a.tar"]
    assert expand("{a,b}-{9..11}.tar") == [f"{x}-{n}.tar" for x in "ab" for n in (9, 10, 11)]
    assert expand("{a}.tar") == ["a.tar"]


def test_truncated_shard_is_reported_and_used_without_its_end(tmp_path: Path) -> None:
    """The shard is truncated inside an image, a label or a header, or between two samples."""
    images = {i: encoded(np.full((40, 40, 3), 10 * i, np.uint8)) for i in range(12)}
    files = {f"{i:02d}.{kind}": body for i in range(12)
             for kind, body in (("png", images[i]), ("cls", f"{i % 2 + 10}".encode()))}  # fmt: skip
    whole = write(tmp_path / "whole" / "a.tar", files).read_bytes()
    ends = {name: start + size for name, start, size in list_members(tmp_path / "whole" / "a.tar")[0]}
    cuts = [ends["09.png"] - 30, ends["09.png"] + 600, ends["09.cls"] - 1, ends["09.cls"] + 600, ends["09.cls"] + 511]
    for cut in cuts:
        (tmp_path / "a.tar").write_bytes(whole[:cut])
        data = open_data(str(tmp_path / "a.tar"))
        assert "damaged: a.tar: " in data.note
        read = {data.train.name(i): data.train.labels[i] for i in range(len(data.train))}
        read |= {data.val.name(i): data.val.labels[i] for i in range(len(data.val))}
        assert {name: label for name, label in read.items() if "09" not in name} == {
            f"a.tar/{i:02d}.png": i % 2 for i in range(9)
        }
        assert data.classes == ("10", "11")  # no label was read from a truncated member
        report = check_data(str(tmp_path / "a.tar"))
        assert report.problems == 1
        assert "damaged: a.tar: " in str(report)


def test_truncated_image_in_a_shard_is_unreadable(tmp_path: Path) -> None:
    """The label precedes the image."""
    files = {}
    for i in range(8):
        files |= {f"{i}.cls": f"{i % 2}".encode(), f"{i}.png": encoded(np.full((40, 40, 3), 10 * i, np.uint8))}
    whole = write(tmp_path / "a.tar", files)
    start, size = next(member[1:] for member in list_members(whole)[0] if member.name == "7.png")
    whole.write_bytes(whole.read_bytes()[: start + size - 20])
    report = check_data(str(whole))
    assert [(sample.name, "truncated" in sample.reason) for sample in report.unreadable] == [("a.tar/7.png", True)]
    assert report.problems == 2


FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]


def write_tar(path: Path, files: dict[str, bytes], form: int, **header: object) -> None:
    with tarfile.open(path, "w", format=form) as tar:
        folder = tarfile.TarInfo("folder")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for name, body in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(body)
            for key, value in header.items():
                setattr(info, key, value)
            tar.addfile(info, io.BytesIO(body))


def listed(path: Path) -> list[tuple[str, int, int]]:
    with tarfile.open(path) as tar:
        return [(member.name, member.offset_data, member.size) for member in tar if member.isfile()]


@settings(deadline=None, max_examples=40)
@given(
    st.dictionaries(st.from_regex(r"[a-zé]{1,40}(/[a-z.]{1,60}){0,4}[a-z]", fullmatch=True), st.binary(max_size=1500)),
    st.sampled_from(FORMATS[1:]),
)
def test_members_equal_tarfile(tmp_path_factory, files: dict[str, bytes], form: int) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path_factory.mktemp("tar") / "a.tar"
    write_tar(path, files, form)
    assert list_members(path) == (listed(path), None)


@pytest.mark.parametrize("form", FORMATS)
def test_long_member_names(tmp_path: Path, form: int) -> None:
    write_tar(tmp_path / "a.tar", {"d" * 120 + "/" + "f" * 60 + ".jpg": b"1", "b.jpg": b"22"}, form)
    assert list_members(tmp_path / "a.tar") == (listed(tmp_path / "a.tar"), None)


def test_fractional_times_written_by_webdataset(tmp_path: Path) -> None:
    """They require an extended header for every file."""
    write_tar(tmp_path / "a.tar", {"a.jpg": b"1" * 600, "a.cls": b"0"}, tarfile.PAX_FORMAT, mtime=1.5)
    assert list_members(tmp_path / "a.tar") == (listed(tmp_path / "a.tar"), None)


def test_files_above_eight_gigabytes(tmp_path: Path) -> None:
    info = tarfile.TarInfo("big.jpg")
    info.size = 9 << 30
    for form in FORMATS[1:]:
        header = info.tobuf(form)
        with open(tmp_path / "a.tar", "wb") as file:
            file.write(header)
            file.truncate(len(header) + info.size)  # a sparse file takes no disk space
        assert list_members(tmp_path / "a.tar")[0] == [("big.jpg", len(header), info.size)]


def test_file_that_is_not_a_tar_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    for data, message in [
        (b"\x1f\x8b" + bytes(range(256)) * 4, "compressed|invalid"),
        (b"", "is empty"),
    ]:
        path.write_bytes(data)
        with pytest.raises(ValueError, match=message) as caught:
            list_members(path)
        assert str(path) in str(caught.value)


@pytest.mark.parametrize("form", FORMATS)
def test_truncation_anywhere_is_reported_and_keeps_earlier_members(tmp_path: Path, form: int) -> None:
    path = tmp_path / "a.tar"
    files = {f"{'folder/' * 17}{i}.jpg": bytes([65 + i]) * (300 * i + 1) for i in range(6)}
    write_tar(path, files, form)
    whole, members = path.read_bytes(), listed(path)
    last = -(-(members[-1][1] + members[-1][2]) // 512) * 512
    for cut in range(1, last + 511, 97):
        path.write_bytes(whole[:cut])
        if cut < 512:
            continue  # not even a complete header
        found, damage = list_members(path)
        assert damage is not None
        assert "truncated" in damage
        assert found == members[: len(found)]
        assert len(found) >= sum(start + size <= cut for _, start, size in members)
    for end in (last + 512, last + 1024, len(whole)):
        path.write_bytes(whole[:end])
        assert list_members(path) == (members, None)


def test_concatenated_archives_are_reported(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"a.jpg": b"1"}, tarfile.PAX_FORMAT)
    whole = (tmp_path / "a.tar").read_bytes()
    (tmp_path / "a.tar").write_bytes(whole + whole)
    assert "data after the end of the archive" in str(list_members(tmp_path / "a.tar")[1])
