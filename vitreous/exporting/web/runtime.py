"""The files of onnxruntime-web that the exported page needs.

They are too large for this repository. They come from an unpacked package, from the cache, or from npm.
"""

import base64
import hashlib
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

from vitreous.common.atomic_files import atomic_folder
from vitreous.data.sources.download import cache_folder

PACKAGE, VERSION = "onnxruntime-web", "1.24.3"
INTEGRITY = (
    "41dDq7fxtTm0XzGE7N0d6m8FcOY8EWtUA65GkOixJPB/G7DGzBmiDAnVVXHznRw9bgUZpb+4/1lQK/PNxGpbrQ=="  # SHA-512, base64
)
WASM = ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm")
WEBGPU = ("ort.webgpu.min.mjs", "ort-wasm-simd-threaded.asyncify.mjs", "ort-wasm-simd-threaded.asyncify.wasm")
TIMEOUT = 600  # seconds to download the package


def runtime_files(
    folder: Path | None = None, webgpu: bool = False, announce: Callable[[str], None] = print
) -> list[Path]:
    """Return the files of the runtime.

    Args:
        folder: Unpacked package. By default, the cache is used; if it is empty, npm downloads the package.
        webgpu: Also return the files that run models on a GPU.
        announce: Called with a message before anything is downloaded.
    """
    names = WASM + (WEBGPU if webgpu else ())
    if folder is None:
        folder = cache_folder(PACKAGE) / VERSION
        if not all((folder / name).is_file() for name in names):
            _download(folder, announce)
    elif (folder / "dist").is_dir():
        folder = folder / "dist"
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise ValueError(f"{missing[0]} not found in {folder}; expected an unpacked {PACKAGE} {VERSION} package")
    return [folder / name for name in names]


def _download(folder: Path, announce: Callable[[str], None]) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise ValueError(
            f"the page needs {PACKAGE} {VERSION}: install npm, which downloads it, or pass --runtime with the folder "
            "of the unpacked package"
        )
    announce(f"downloading {PACKAGE} {VERSION} with npm (once, about 31 MB)")
    with atomic_folder(folder) as aside:
        command = [npm, "pack", f"{PACKAGE}@{VERSION}", "--silent", "--pack-destination", str(aside)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, cwd=aside)
        except subprocess.TimeoutExpired:
            raise OSError(f"npm did not finish within {TIMEOUT} s; pass --runtime to use an unpacked package") from None
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
            raise OSError(f"npm could not download {PACKAGE} {VERSION}: {lines[-1]}; pass --runtime instead")
        archive = aside / f"{PACKAGE}-{VERSION}.tgz"
        unpack(archive, aside, INTEGRITY)
        archive.unlink()


def unpack(archive: Path, folder: Path, integrity: str) -> None:
    """Check the SHA-512 hash of a package, and extract the files of the runtime."""
    with open(archive, "rb") as file:
        found = base64.b64encode(hashlib.file_digest(file, "sha512").digest()).decode()
    if found != integrity:
        raise ValueError(f"{archive.name} has the SHA-512 hash {found}, but {integrity} was expected")
    with tarfile.open(archive) as package:
        for name in WASM + WEBGPU:
            content = package.extractfile(f"package/dist/{name}")
            assert content is not None  # the archive is known, because its hash is
            with content, open(folder / name, "wb") as target:
                shutil.copyfileobj(content, target)
