import io
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitreous.data.sources.tars import list_members

FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]


def write(path: Path, files: dict[str, bytes], form: int, **header: object) -> None:
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
def test_as_tarfile_lists_them(tmp_path_factory, files: dict[str, bytes], form: int) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path_factory.mktemp("tar") / "a.tar"
    write(path, files, form)
    assert list_members(path) == (listed(path), None)


@pytest.mark.parametrize("form", FORMATS)
def test_long_names(tmp_path: Path, form: int) -> None:
    write(tmp_path / "a.tar", {"d" * 120 + "/" + "f" * 60 + ".jpg": b"1", "b.jpg": b"22"}, form)
    assert list_members(tmp_path / "a.tar") == (listed(tmp_path / "a.tar"), None)


def test_times_with_fractions_as_webdataset_writes_them(tmp_path: Path) -> None:
    """They take an extended header for every file."""
    write(tmp_path / "a.tar", {"a.jpg": b"1" * 600, "a.cls": b"0"}, tarfile.PAX_FORMAT, mtime=1.5)
    assert list_members(tmp_path / "a.tar") == (listed(tmp_path / "a.tar"), None)


def test_files_beyond_eight_gigabytes(tmp_path: Path) -> None:
    info = tarfile.TarInfo("big.jpg")
    info.size = 9 << 30
    for form in FORMATS[1:]:
        header = info.tobuf(form)
        with open(tmp_path / "a.tar", "wb") as file:
            file.write(header)
            file.truncate(len(header) + info.size)  # a hole: it takes no room on the disk
        assert list_members(tmp_path / "a.tar").members == [("big.jpg", len(header), info.size)]


def test_what_is_not_a_tar(tmp_path: Path) -> None:
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
def test_a_cut_anywhere_is_reported_and_keeps_what_is_before_it(tmp_path: Path, form: int) -> None:
    path = tmp_path / "a.tar"
    files = {f"{'folder/' * 17}{i}.jpg": bytes([65 + i]) * (300 * i + 1) for i in range(6)}
    write(path, files, form)
    whole, members = path.read_bytes(), listed(path)
    last = -(-(members[-1][1] + members[-1][2]) // 512) * 512
    for cut in range(1, last + 511, 97):
        path.write_bytes(whole[:cut])
        if cut < 512:
            continue  # not even a header
        found, damage = list_members(path)
        assert damage is not None
        assert "cut short" in damage
        assert found == members[: len(found)]
        assert len(found) >= sum(start + size <= cut for _, start, size in members)
    for end in (last + 512, last + 1024, len(whole)):
        path.write_bytes(whole[:end])
        assert list_members(path) == (members, None)


def test_archives_that_were_joined_are_reported(tmp_path: Path) -> None:
    write(tmp_path / "a.tar", {"a.jpg": b"1"}, tarfile.PAX_FORMAT)
    whole = (tmp_path / "a.tar").read_bytes()
    (tmp_path / "a.tar").write_bytes(whole + whole)
    assert "more after its end" in str(list_members(tmp_path / "a.tar").damage)
