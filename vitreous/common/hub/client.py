"""Fetches listings and files of a Hugging Face hub into huggingface_hub's cache."""

import contextlib
import hashlib
import os
import re
import threading
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import huggingface_hub
from huggingface_hub import constants
from huggingface_hub.hf_api import RepoSibling

import vitreous
from vitreous.common.hub.transport import Exchange, check_space, exchange
from vitreous.common.network import BadAnswer, Pace

__all__ = ["check_commit", "check_file_name", "check_space", "fetch", "metadata"]

MAX_PATH = 1024  # characters of a file's name with its folders
WORKERS = 8

_FETCHING = threading.Lock()


def metadata() -> contextlib.AbstractContextManager[None]:
    """Bound every answer within this block to 64 MiB and a minute."""
    return exchange(Exchange())


def fetch(repository: str, files: Collection[RepoSibling], revision: str | None, repo_type: str = "model") -> Path:
    """Fetch files of the hub's listing into the cache, and return the folder of their commit.

    Each file is compared with its checksum when it arrives, so that no unverified file stays in the cache.
    """
    pace = Pace(f"{constants.ENDPOINT}: the download of {repository}")

    def fetch_file(file: RepoSibling) -> Path:
        name = file.rfilename
        cached = huggingface_hub.try_to_load_from_cache(repository, name, revision=revision, repo_type=repo_type)
        with exchange(Exchange(name, file.size, pace)):
            path = huggingface_hub.hf_hub_download(
                repository,
                name,
                repo_type=repo_type,
                revision=revision,
                library_name="vitreous",
                library_version=vitreous.__version__,
            )
        folder = Path(path).parents[name.count("/")]
        if path != cached:
            _check_sum(folder, file)
        return folder

    for file in files:
        check_file_name(file.rfilename)
    # The client of Xet has none of these bounds.
    with _FETCHING, _set(constants, "HF_HUB_DISABLE_XET", True), ThreadPoolExecutor(WORKERS) as pool:
        futures = [pool.submit(fetch_file, file) for file in files]
        try:
            folders = {future.result() for future in futures}
        finally:
            pool.shutdown(cancel_futures=True)
    if len(folders) != 1:
        raise BadAnswer(f"{repository} has changed during the download: try again")
    return folders.pop()


def _check_sum(folder: Path, file: RepoSibling) -> None:
    """Compare a file with its SHA-256 if it is large, otherwise with git's checksum; remove a wrong one."""
    path = folder / file.rfilename
    with path.open("rb") as stream:
        if file.lfs is not None:
            right: str | None = file.lfs.sha256
            found = hashlib.file_digest(stream, "sha256").hexdigest()
        else:
            content = stream.read()
            right = file.blob_id
            found = hashlib.sha1(b"blob %d\0%b" % (len(content), content), usedforsecurity=False).hexdigest()
    if right is not None and found != right:
        _remove(folder, path)
        raise BadAnswer(f"{file.rfilename} has arrived with the checksum {found}, but must have {right}")


def _remove(folder: Path, path: Path) -> None:
    """Remove a file of a snapshot and the blob that it links to, if that is in the cache's folder of blobs."""
    blob = Path(os.path.normpath(path.parent / path.readlink())) if path.is_symlink() else None
    path.unlink()
    if blob is not None and blob.parent == folder.parents[1] / "blobs":  # beside snapshots/COMMIT/
        blob.unlink(missing_ok=True)


@contextlib.contextmanager
def _set(owner: object, name: str, value: object) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def check_file_name(name: object) -> None:
    """Raise BadAnswer for a name that could leave its folder on any system."""
    good = isinstance(name, str) and len(name) <= MAX_PATH and name.isprintable() and not set(name) & set("\\:")
    if not good or {"", ".", ".."} & set(str(name).split("/")):
        raise BadAnswer(f"{constants.ENDPOINT} lists {str(name)[:100]!r}, which is not the name of a file")


def check_commit(commit: object) -> str:
    """Return a commit, which becomes the name of a folder. Raise BadAnswer if it is not a hash."""
    if not isinstance(commit, str) or not re.fullmatch("[0-9a-f]{40}", commit):
        raise BadAnswer(f"{constants.ENDPOINT} has sent the commit {str(commit)[:100]!r}, but must send 40 hex digits")
    return commit
