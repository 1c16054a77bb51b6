"""Data sets on the Hugging Face Hub: `hf:owner/name`, or `hf:owner/name:config`, optionally with `@revision`.

Reads the Parquet files of the repository, or the Hub's automatic conversion to Parquet. Files are stored in
huggingface_hub's cache; with HF_HUB_OFFLINE=1 or without a network, only the cache is used.
"""

import re
from pathlib import Path
from typing import Any

from vitreous.data.sources.base import FoundData
from vitreous.data.sources.tables import choose_files, open_parquet
from vitreous.data.sources.targets import TargetKind

CONVERTED = "refs/convert/parquet"


def open_hub(spec: str, targets: TargetKind | None = None) -> FoundData:
    """Open a data set on the Hugging Face Hub, given as `hf:...`. `targets` are read instead of labels."""
    match = re.fullmatch(r"hf:([\w.-]+(?:/[\w.-]+)?)(?::([\w.-]+))?(?:@([\w./-]+))?", spec)
    if match is None:
        raise ValueError(f"expected hf:owner/name, hf:owner/name:config or hf:owner/name@revision, got {spec!r}")
    repo, config, revision = match.groups()
    for candidate in [revision] if revision else [None, CONVERTED]:
        files, folder = _list(spec, repo, candidate)
        if files:
            chosen = choose_files(spec, files, config)
            if folder is None:
                wanted = [files[file] for inside in chosen.values() for file in inside]
                folder = _download(spec, repo, candidate, wanted)
            paths = {split: [folder / file for file in inside] for split, inside in chosen.items()}
            return open_parquet(spec, paths, None, targets)
    raise ValueError(f"{spec}: the repository has no Parquet files, and the Hub has not converted it to Parquet")


def _list(spec: str, repo: str, revision: str | None) -> tuple[dict[str, Any], Path | None]:
    """Return the Parquet files of a revision by name, or an empty dictionary if the revision does not exist.

    Without a network, return the files in the cache, together with the cache folder.
    """
    import huggingface_hub
    from huggingface_hub import constants
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

    from vitreous.common.hub_client import metadata

    reason = "HF_HUB_OFFLINE is set"
    if not constants.HF_HUB_OFFLINE:
        try:
            # A single request. Without a network, listing the tree would retry for half a minute.
            with metadata():
                about = huggingface_hub.HfApi().dataset_info(repo, revision=revision, timeout=10, files_metadata=True)
            files = [file for file in about.siblings or [] if str(file.rfilename).endswith(".parquet")]
            return {file.rfilename: file for file in files}, None
        except RevisionNotFoundError:
            return {}, None
        except GatedRepoError:
            raise OSError(f"{spec} is gated: accept the terms on its page, then run `hf auth login`") from None
        except RepositoryNotFoundError:
            raise ValueError(f"{spec} does not exist on the Hub or is private") from None
        except HfHubHTTPError as error:
            raise OSError(f"{spec}: {_line(error)}") from None
        except Exception as error:  # network errors depend on the HTTP library
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
    from vitreous.common.hub_client import check_space, fetch

    try:
        check_space(spec, sum(file.size or 0 for file in files))
        return fetch(repo, files, revision, repo_type="dataset")
    except Exception as error:
        raise OSError(f"could not download {spec}: {_line(error)}") from error


def _line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
