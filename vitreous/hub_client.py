"""Listings and files of a Hugging Face hub, through huggingface_hub and into its cache."""

import contextlib
import re
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import huggingface_hub
from huggingface_hub import constants

import vitreous
from vitreous.hub_transport import Exchange, check_space, exchange
from vitreous.network import BadAnswer, Pace

__all__ = ["check_commit", "check_file_name", "check_space", "fetch", "metadata"]

MAX_PATH = 1024  # characters of a file's name with its folders
WORKERS = 8

_FETCHING = threading.Lock()


def metadata() -> contextlib.AbstractContextManager[None]:
    """Bound every answer within this block to 64 MiB and a minute."""
    return exchange(Exchange())


def fetch(repository: str, sizes: Mapping[str, int | None], revision: str | None, repo_type: str = "model") -> Path:
    """Fetch files into huggingface_hub's cache, and return the folder of their commit.

    `sizes` has the names of the files and their sizes in the hub's listing; a size that the listing lacks is taken
    from the answer to the HEAD request.
    """
    pace = Pace(f"{constants.ENDPOINT}: the download of {repository}")

    def fetch_file(name: str) -> Path:
        with exchange(Exchange(name, sizes[name], pace)):
            path = huggingface_hub.hf_hub_download(
                repository,
                name,
                repo_type=repo_type,
                revision=revision,
                library_name="vitreous",
                library_version=vitreous.__version__,
            )
        return Path(path).parents[name.count("/")]

    for name in sizes:
        check_file_name(name)
    # Xet has a client of its own, which has none of these bounds.
    with _FETCHING, _set(constants, "HF_HUB_DISABLE_XET", True), ThreadPoolExecutor(WORKERS) as pool:
        futures = [pool.submit(fetch_file, name) for name in sizes]
        try:
            folders = {future.result() for future in futures}
        finally:
            pool.shutdown(cancel_futures=True)
    if len(folders) != 1:
        raise BadAnswer(f"{repository} has changed while it was being fetched: try again")
    return folders.pop()


@contextlib.contextmanager
def _set(owner: object, name: str, value: object) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def check_file_name(name: object) -> None:
    """Raise BadAnswer for a name that does not stay in its folder on every system."""
    good = isinstance(name, str) and len(name) <= MAX_PATH and name.isprintable() and not set(name) & set("\\:")
    if not good or {"", ".", ".."} & set(str(name).split("/")):
        raise BadAnswer(f"{constants.ENDPOINT} lists {str(name)[:100]!r}, which is not the name of a file")


def check_commit(commit: object) -> str:
    """Return a commit, which becomes the name of a folder. Raises BadAnswer if it is no hash."""
    if not isinstance(commit, str) or not re.fullmatch("[0-9a-f]{40}", commit):
        raise BadAnswer(f"{constants.ENDPOINT} has sent the commit {str(commit)[:100]!r}, but must send 40 hex digits")
    return commit
