"""Data sets of the Hugging Face hub: `hf:owner/name`, or `hf:owner/name:config`, either with `@revision`.

Their Parquet files are used, from the repository itself or from the hub's own conversion of it. Everything is stored
in huggingface_hub's cache; with HF_HUB_OFFLINE=1, or without a network, only the cache is used.
"""

import re
from pathlib import Path
from typing import Any

from vitreous.data.sources.base import FoundData
from vitreous.data.sources.tables import choose_files, open_parquet

CONVERTED = "refs/convert/parquet"


def open_hub(spec: str) -> FoundData:
    """Open the data set that `hf:...` names."""
    match = re.fullmatch(r"hf:([\w.-]+(?:/[\w.-]+)?)(?::([\w.-]+))?(?:@([\w./-]+))?", spec)
    if match is None:
        raise ValueError(f"{spec!r} is not of the form hf:owner/name, hf:owner/name:config or hf:owner/name@revision")
    repo, config, revision = match.groups()
    for candidate in [revision] if revision else [None, CONVERTED]:
        files, folder = _list(spec, repo, candidate)
        if files:
            chosen = choose_files(spec, files, config)
            if folder is None:
                wanted = [files[file] for inside in chosen.values() for file in inside]
                folder = _download(spec, repo, candidate, wanted)
            return open_parquet(spec, {split: [folder / file for file in inside] for split, inside in chosen.items()})
    raise ValueError(f"{spec}: the repository has no Parquet files, and the hub has not converted it")


def _list(spec: str, repo: str, revision: str | None) -> tuple[dict[str, Any], Path | None]:
    """List the Parquet files of a revision by name, as the hub describes them; none if there is no such revision.

    Without a network, list the cache and return its folder as well.
    """
    import huggingface_hub
    from huggingface_hub import constants
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

    from vitreous.common.hub_client import metadata

    reason = "HF_HUB_OFFLINE is set"
    if not constants.HF_HUB_OFFLINE:
        try:
            # One request: listing the tree would retry for half a minute without a network.
            with metadata():
                about = huggingface_hub.HfApi().dataset_info(repo, revision=revision, timeout=10, files_metadata=True)
            files = [file for file in about.siblings or [] if str(file.rfilename).endswith(".parquet")]
            return {file.rfilename: file for file in files}, None
        except RevisionNotFoundError:
            return {}, None
        except GatedRepoError:
            raise OSError(f"{spec}: accept the terms on its page first, then log in with `hf auth login`") from None
        except RepositoryNotFoundError:
            raise ValueError(f"{spec}: the hub has no such data set, or it is private") from None
        except HfHubHTTPError as error:
            raise OSError(f"{spec}: {_line(error)}") from None
        except Exception as error:  # the exceptions without a network depend on the HTTP library
            reason = _line(error)
    try:
        folder = Path(
            huggingface_hub.snapshot_download(
                repo, repo_type="dataset", revision=revision, local_files_only=True, allow_patterns=[]
            )
        )
    except OSError:
        if revision == CONVERTED:
            return {}, None
        address = f"{constants.ENDPOINT}/datasets/{repo}"
        raise OSError(f"{spec} is not in the cache, and {address} is unreachable ({reason})") from None
    return {path.relative_to(folder).as_posix(): None for path in folder.rglob("*.parquet")}, folder


def _download(spec: str, repo: str, revision: str | None, files: list[Any]) -> Path:
    """Download files into the cache, and return their folder there."""
    from vitreous.common.hub_client import check_space, fetch

    try:
        check_space(spec, sum(file.size or 0 for file in files))
        return fetch(repo, files, revision, repo_type="dataset")
    except Exception as error:
        raise OSError(f"{spec}: could not be downloaded: {_line(error)}") from error


def _line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
