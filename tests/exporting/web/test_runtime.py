"""Where the files of onnxruntime-web come from."""

import base64
import hashlib
import io
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from vitreous.exporting.web import runtime
from vitreous.exporting.web.runtime import PACKAGE, VERSION, WASM, WEBGPU, runtime_files


def package(path: Path) -> str:
    """Write a package with the names of the runtime's files, and return its hash."""
    with tarfile.open(path, "w:gz") as archive:
        for name in (*WASM, *WEBGPU):
            entry = tarfile.TarInfo(f"package/dist/{name}")
            entry.size = len(name)
            archive.addfile(entry, io.BytesIO(name.encode()))
    return base64.b64encode(hashlib.sha512(path.read_bytes()).digest()).decode()


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Replace npm by a program that writes a package. Return the list of its calls."""
    calls: list[list[str]] = []
    source = tmp_path / "source.tgz"
    monkeypatch.setattr(runtime, "INTEGRITY", package(source))
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(runtime.shutil, "which", lambda name: "/bin/npm" if name == "npm" else None)

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        (Path(command[-1]) / f"{PACKAGE}-{VERSION}.tgz").write_bytes(source.read_bytes())
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(runtime.subprocess, "run", run)
    return calls


def test_npm_downloads_the_package_once(npm: list[list[str]]) -> None:
    announced: list[str] = []
    first = runtime_files(announce=announced.append)
    again = runtime_files(webgpu=True, announce=announced.append)
    assert [file.name for file in first] == list(WASM)
    assert [file.name for file in again] == [*WASM, *WEBGPU]
    assert [file.read_text() for file in again] == [*WASM, *WEBGPU]
    assert len(npm) == len(announced) == 1
    assert f"{PACKAGE}@{VERSION}" in npm[0]


def test_another_package_is_refused_and_not_kept(npm: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "INTEGRITY", "something else")
    for _ in range(2):
        with pytest.raises(ValueError, match="SHA-512"):
            runtime_files(announce=lambda _: None)
    assert len(npm) == 2


def test_a_failing_download_is_reported(npm: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "npm error\nnpm error network ENOTFOUND")

    monkeypatch.setattr(runtime.subprocess, "run", fails)
    with pytest.raises(OSError, match=r"ENOTFOUND.*--runtime"):
        runtime_files(announce=lambda _: None)


def test_without_npm_both_ways_are_named(npm: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime.shutil, "which", lambda name: None)
    with pytest.raises(ValueError, match=r"npm.*--runtime"):
        runtime_files()


def test_a_given_folder_is_used_without_npm(npm: list[list[str]], tmp_path: Path) -> None:
    folder = tmp_path / "package"
    (folder / "dist").mkdir(parents=True)
    for name in WASM:
        (folder / "dist" / name).touch()
    assert [file.name for file in runtime_files(folder)] == list(WASM)
    assert [file.name for file in runtime_files(folder / "dist")] == list(WASM)
    with pytest.raises(ValueError, match=f"{WEBGPU[0]} not found"):
        runtime_files(folder, webgpu=True)
    assert not npm
