import io
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitreous.data.tars import members

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
    assert list(members(path)) == listed(path)


@pytest.mark.parametrize("form", FORMATS)
def test_long_names(tmp_path: Path, form: int) -> None:
    write(tmp_path / "a.tar", {"d" * 120 + "/" + "f" * 60 + ".jpg": b"1", "b.jpg": b"22"}, form)
    assert list(members(tmp_path / "a.tar")) == listed(tmp_path / "a.tar")


def test_times_with_fractions_as_webdataset_writes_them(tmp_path: Path) -> None:
    """They take an extended header for every file."""
    write(tmp_path / "a.tar", {"a.jpg": b"1" * 600, "a.cls": b"0"}, tarfile.PAX_FORMAT, mtime=1.5)
    assert list(members(tmp_path / "a.tar")) == listed(tmp_path / "a.tar")


def test_files_beyond_eight_gigabytes(tmp_path: Path) -> None:
    info = tarfile.TarInfo("big.jpg")
    info.size = 9 << 30
    for form in FORMATS[1:]:
        header = info.tobuf(form)
        with open(tmp_path / "a.tar", "wb") as file:
            file.write(header)
            file.truncate(len(header) + info.size)  # a hole: it takes no room on the disk
        assert list(members(tmp_path / "a.tar")) == [("big.jpg", len(header), info.size)]


def test_what_is_not_a_tar(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    write(path, {"a.jpg": b"x" * 5000}, tarfile.PAX_FORMAT)
    whole = path.read_bytes()
    for data, message in [
        (whole[:3000], "cut short"),
        (b"\x1f\x8b" + bytes(range(256)) * 4, "compressed|invalid"),
        (b"", "is empty"),
    ]:
        path.write_bytes(data)
        with pytest.raises(ValueError, match=message) as caught:
            list(members(path))
        assert str(path) in str(caught.value)
