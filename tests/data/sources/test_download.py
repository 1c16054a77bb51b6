import hashlib
import random
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from vitreous.data.sources.download import cache_folder, fetch

BODY = random.Random(0).randbytes(3_000_000)
MD5, SHA256 = hashlib.md5(BODY).hexdigest(), hashlib.sha256(BODY).hexdigest()


@pytest.mark.parametrize("checksum", [MD5, SHA256, None])
def test_file_is_downloaded_whole_and_only_once(web, tmp_path, checksum) -> None:  # type: ignore[no-untyped-def]
    web.files["/a.bin"] = BODY
    target = tmp_path / "below" / "a.bin"
    assert fetch(f"{web.url}/a.bin", target, checksum) == target
    assert target.read_bytes() == BODY
    assert fetch(f"{web.url}/a.bin", target, checksum) == target
    assert len(web.requests) == 1


def test_broken_connection_is_resumed(web, tmp_path) -> None:  # type: ignore[no-untyped-def]
    web.files["/a.bin"], web.breaks = BODY, 3
    assert fetch(f"{web.url}/a.bin", tmp_path / "a.bin", SHA256).read_bytes() == BODY
    starts = [int(requested_range.removeprefix("bytes=").rstrip("-")) for _, requested_range in web.requests[1:]]
    assert starts == [1_500_000, 2_250_000, 2_625_000]


def test_interrupted_download_is_resumed(web, tmp_path) -> None:  # type: ignore[no-untyped-def]
    web.files["/a.bin"] = BODY
    (tmp_path / "a.bin.part").write_bytes(BODY[:1000])
    (tmp_path / "a.bin.part.tag").write_text(web.tag)
    assert fetch(f"{web.url}/a.bin", tmp_path / "a.bin").read_bytes() == BODY
    assert web.requests == [("/a.bin", "bytes=1000-")]
    assert {path.name for path in tmp_path.iterdir()} == {"a.bin", "a.bin.lock"}


def test_changed_file_is_downloaded_again(web, tmp_path) -> None:  # type: ignore[no-untyped-def]
    web.files["/a.bin"], web.tag = BODY, '"2"'
    (tmp_path / "a.bin.part").write_bytes(b"old" * 1000)
    (tmp_path / "a.bin.part.tag").write_text('"1"')
    assert fetch(f"{web.url}/a.bin", tmp_path / "a.bin").read_bytes() == BODY


@pytest.mark.parametrize("have", [len(BODY), len(BODY) + 5])
def test_partial_file_of_full_size_is_handled(web, tmp_path, have: int) -> None:  # type: ignore[no-untyped-def]
    web.files["/a.bin"] = BODY
    (tmp_path / "a.bin.part").write_bytes((BODY + b".....")[:have])
    assert fetch(f"{web.url}/a.bin", tmp_path / "a.bin", MD5).read_bytes() == BODY


def test_server_without_range_support(web, tmp_path) -> None:  # type: ignore[no-untyped-def]
    web.files["/a.bin"], web.breaks, web.ranges = BODY, 1, False
    assert fetch(f"{web.url}/a.bin", tmp_path / "a.bin", MD5).read_bytes() == BODY


def test_server_without_content_length(web, tmp_path) -> None:  # type: ignore[no-untyped-def]
    web.files["/a.bin"], web.length = BODY, False
    assert fetch(f"{web.url}/a.bin", tmp_path / "a.bin").read_bytes() == BODY


def test_wrong_checksum_raises_and_removes_the_file(web, tmp_path) -> None:  # type: ignore[no-untyped-def]
    web.files["/a.bin"] = BODY + b"!"
    with pytest.raises(ValueError, match=f"checksum mismatch for .*a.bin: expected {MD5}, got [0-9a-f]{{32}}"):
        fetch(f"{web.url}/a.bin", tmp_path / "a.bin", MD5)
    assert not list(tmp_path.glob("a.bin")) + list(tmp_path.glob("*.part*"))
    web.files["/a.bin"] = BODY
    assert fetch(f"{web.url}/a.bin", tmp_path / "a.bin", MD5).read_bytes() == BODY


@pytest.mark.parametrize("length", [True, False], ids=["declared", "undeclared"])
def test_too_large_file_is_rejected(web, tmp_path, length: bool) -> None:  # type: ignore[no-untyped-def]
    web.files["/a.bin"], web.length = BODY, length
    with pytest.raises(OSError, match=r"127.*a\.bin exceeds the limit of 1,000 bytes"):
        fetch(f"{web.url}/a.bin", tmp_path / "a.bin", max_bytes=1000)
    assert not (tmp_path / "a.bin").exists()


def test_slow_server_is_abandoned(web, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("vitreous.common.network.WINDOW_SECONDS", 0.5)
    web.files["/a.bin"], web.seconds_per_byte = BODY, 0.05
    with pytest.raises(OSError, match=r"127.*a\.bin is too slow"):
        fetch(f"{web.url}/a.bin", tmp_path / "a.bin")


def test_stalled_connection_is_resumed(web, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("vitreous.data.sources.download.TIMEOUT", 0.3)
    web.files["/a.bin"], web.silences = BODY, 1
    assert fetch(f"{web.url}/a.bin", tmp_path / "a.bin", SHA256).read_bytes() == BODY
    assert len(web.requests) == 2


def test_endless_restarts_are_abandoned(web, tmp_path) -> None:  # type: ignore[no-untyped-def]
    web.files["/a.bin"], web.ranges, web.breaks = BODY, False, 100
    with pytest.raises(OSError, match=r"127.*a\.bin: .*restarted \d times"):
        fetch(f"{web.url}/a.bin", tmp_path / "a.bin")
    assert len(web.requests) < 10


def test_errors_name_the_url(web, tmp_path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(OSError, match=r"could not download http://127.*/none: HTTP 404"):
        fetch(f"{web.url}/none", tmp_path / "none")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(OSError, match=rf"could not download http://127.0.0.1:{port}/x: .*refused"):
        fetch(f"http://127.0.0.1:{port}/x", tmp_path / "x")


def test_concurrent_downloads_fetch_the_file_once(web, tmp_path) -> None:  # type: ignore[no-untyped-def]
    web.files["/a.bin"] = BODY
    code = "import sys; from pathlib import Path; from vitreous.data.sources.download import fetch"
    code += "; fetch(sys.argv[1], Path(sys.argv[2]))"
    command = [sys.executable, "-c", code, f"{web.url}/a.bin", str(tmp_path / "a.bin")]
    processes = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    assert (tmp_path / "a.bin").read_bytes() == BODY
    assert len(web.requests) == 1


def test_cache_folder_is_set_by_the_environment(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_folder("data", "x") == cache / "data" / "x"
    assert (cache / "data" / "x").is_dir()
    monkeypatch.delenv("VITREOUS_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "vitreous"
