import errno
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from vitreous.common import atomic_files as files
from vitreous.common.atomic_files import atomic_file, atomic_folder, recover

# Writes new versions until killed; `two-renames` simulates a file system that cannot exchange folders.
WRITER = """
import itertools, sys
from vitreous.common import atomic_files as files

path, kind, method, first = sys.argv[1:]
if method == "two-renames":
    files._exchange = lambda one, other: False
for version in itertools.count(int(first)):
    text = f"{version:06d}" * 2000
    if kind == "file":
        with files.atomic_file(path) as aside:
            aside.write_text(text)
    else:
        with files.atomic_folder(path) as aside:
            for name in ("one", "two"):
                (aside / name).write_text(text)
    print("saved", flush=True)
"""


def complete_version(text: str) -> int:
    """Return the version number after checking that the text is complete."""
    assert len(text) == 12000
    assert text == text[:6] * 2000
    return int(text[:6])


def names(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


def write_and_fail(path: Path, failure: type[BaseException]) -> None:
    path.write_text("after")
    raise failure


@pytest.fixture(params=["exchange", "two-renames"])
def method(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Replace folders with both methods."""
    if request.param == "two-renames":
        monkeypatch.setattr(files, "_exchange", lambda one, other: False)
    return str(request.param)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a disk of one megabyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)]
    try:
        mounted = os.geteuid() == 0 and subprocess.run(mount, capture_output=True).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("needs the right to mount")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_folder_replaces_the_whole_previous_folder(tmp_path: Path, method: str) -> None:
    path = tmp_path / "a" / "b"
    for version in ("1", "2"):
        with atomic_folder(path) as aside:
            (aside / version).mkdir()
            (aside / version / "text").write_text(version)
            assert aside.parent == path.parent
        assert names(path) == {version}
        assert (path / version / "text").read_text() == version
        assert names(path.parent) == {"b"}


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt])
def test_failure_keeps_the_previous_version(tmp_path: Path, method: str, failure: type[BaseException]) -> None:
    folder, file = tmp_path / "folder", tmp_path / "file.txt"
    with atomic_folder(folder) as aside:
        (aside / "text").write_text("before")
    with atomic_file(file) as aside:
        aside.write_text("before")
    with pytest.raises(failure), atomic_folder(folder) as aside:
        write_and_fail(aside / "text", failure)
    with pytest.raises(failure), atomic_file(file) as aside:
        write_and_fail(aside, failure)
    assert (folder / "text").read_text() == file.read_text() == "before"
    assert names(tmp_path) == {"folder", "file.txt"}


def test_written_files_have_default_permissions(tmp_path: Path) -> None:
    (tmp_path / "usual").write_text("")
    (tmp_path / "usual folder").mkdir()
    with atomic_file(tmp_path / "file") as aside:
        aside.write_text("")
    with atomic_folder(tmp_path / "folder"):
        pass
    for name, like in (("file", "usual"), ("folder", "usual folder")):
        assert (tmp_path / name).stat().st_mode == (tmp_path / like).stat().st_mode


def test_links_are_followed(tmp_path: Path, method: str) -> None:
    with atomic_folder(tmp_path / "real") as aside:
        (aside / "text").write_text("before")
    (tmp_path / "link").symlink_to("real")
    with atomic_folder(tmp_path / "link") as aside:
        (aside / "text").write_text("after")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "text").read_text() == "after"


def test_file_and_folder_do_not_replace_each_other(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="file is not a folder"), atomic_folder(tmp_path / "file"):
        pass
    for name in ("folder", "pipe"):
        with pytest.raises(OSError, match=f"{name} is not a file"), atomic_file(tmp_path / name):
            pass
    assert (tmp_path / "file").read_text() == "kept"
    assert names(tmp_path) == {"file", "folder", "pipe"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "method", "kills"), [("folder", "exchange", 20), ("folder", "two-renames", 10), ("file", "-", 10)]
)
def test_kill_at_any_moment_leaves_a_complete_version(tmp_path: Path, kind: str, method: str, kills: int) -> None:
    """The old or the new version remains complete, and the next save removes temporary files."""
    path = tmp_path / "x.out"
    generator = random.Random(0)
    for first in range(0, 1000 * kills, 1000):
        command = [sys.executable, "-c", WRITER, path, kind, method, str(first)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "saved\n"
            time.sleep(generator.uniform(0, 0.03))
            writer.send_signal(signal.SIGKILL)
            saved = first + writer.stdout.read().count("saved")  # versions reported before the kill
        recover(path)
        parts = [path] if kind == "file" else [path / "one", path / "two"]
        versions = {complete_version(part.read_text()) for part in parts}
        assert versions in ({saved}, {saved + 1})
    if kind == "file":
        with atomic_file(path) as aside:
            aside.write_text("last")
    else:
        with atomic_folder(path) as aside:
            (aside / "text").write_text("last")
    assert names(tmp_path) == {"x.out"}


def test_crash_between_renames_is_recovered(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with atomic_folder(path) as aside:
        (aside / "text").write_text("before")
    path.rename(tmp_path / ".x.old")
    left = tmp_path / ".x.0123abcd.aside"
    left.mkdir()  # temporary folder of the killed process
    recover(path)
    recover(path)
    assert (path / "text").read_text() == "before"
    with atomic_folder(path) as aside:
        (aside / "text").write_text("after")
    assert names(tmp_path) == {"x"}


def test_crash_after_both_renames_needs_no_recovery(tmp_path: Path) -> None:
    path = tmp_path / "x"
    for name in ("x", ".x.old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "text").write_text(name)
    recover(path)
    assert (path / "text").read_text() == "x"


def test_concurrent_writers_do_not_interfere(tmp_path: Path, method: str) -> None:
    path = tmp_path / "x"
    with atomic_folder(path) as first:
        (first / "text").write_text("first")
        with atomic_folder(path) as second:
            (second / "text").write_text("second")
        assert (path / "text").read_text() == "second"
        (first / "more").write_text("first")
    assert names(path) == {"text", "more"}
    assert names(tmp_path) == {"x"}


def test_full_disk_keeps_the_previous_folder(small_disk: Path, method: str) -> None:
    path = small_disk / "x"
    with atomic_folder(path) as aside:
        (aside / "weights").write_bytes(b"1" * 400_000)
    with (
        pytest.raises(
            OSError, match=r"write .*disk/x: no space left on device \(about 0\.9 MB.*previous version is unchanged$"
        ) as e,
        atomic_folder(path, needed=900_000) as aside,
    ):
        (aside / "weights").write_bytes(b"2" * 900_000)
    assert e.value.errno == errno.ENOSPC
    assert "\n" not in str(e.value)
    assert (path / "weights").read_bytes() == b"1" * 400_000
    with atomic_folder(path) as aside:  # the failed write does not take up space
        (aside / "weights").write_bytes(b"3" * 500_000)
    assert names(small_disk) == {"x"}


def test_full_disk_keeps_the_previous_file(tmp_path: Path) -> None:
    """A file size limit fails like a full disk."""
    path = tmp_path / "x.bin"
    path.write_bytes(b"before")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with (
            pytest.raises(OSError, match=r"write .*x\.bin: file too large; the previous version is unchanged"),
            atomic_file(path) as aside,
        ):
            aside.write_bytes(b"2" * 20_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == b"before"
    assert names(tmp_path) == {"x.bin"}


def test_full_disk_is_recognised_in_library_errors(tmp_path: Path) -> None:
    for words in (
        "I/O error: No space left on device (os error 28)",
        "rank 0 failed: [Errno 28] No space left on device",
    ):
        with pytest.raises(OSError, match="nothing was written") as error, atomic_folder(tmp_path / "x"):
            raise RuntimeError(words)
        assert error.value.errno == errno.ENOSPC
    with pytest.raises(RuntimeError, match="another reason"), atomic_folder(tmp_path / "x"):
        raise RuntimeError("another reason")
