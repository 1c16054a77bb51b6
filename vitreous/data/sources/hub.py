"""Data sets of the Hugging Face hub: `hf:owner/name`, or `hf:owner/name:config`, either with `@revision`.

Their Parquet files are used, from the repository itself or from the hub's own conversion of it. Everything lands
in huggingface_hub's cache; with HF_HUB_OFFLINE=1, or without a network, only that is looked at.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vitreous.data.sources.parquet import open_parquet
from vitreous.data.split import WHOLE, Found, listed, part_name

CONVERTED = "refs/convert/parquet"


def open_hub(spec: str) -> Found:
    """The data set that `hf:...` names."""
    match = re.fullmatch(r"hf:([\w.-]+(?:/[\w.-]+)?)(?::([\w.-]+))?(?:@([\w./-]+))?", spec)
    if match is None:
        raise ValueError(f"{spec!r} is not of the form hf:owner/name, hf:owner/name:config or hf:owner/name@revision")
    repo, config, revision = match.groups()
    for candidate in [revision] if revision else [None, CONVERTED]:
        files, folder = _list(spec, repo, candidate)
        if files:
            chosen = choose(spec, files, config)
            if folder is None:
                wanted = [files[file] for part in chosen.values() for file in part]
                folder = _download(spec, repo, candidate, wanted)
            return open_parquet(spec, {part: [folder / file for file in inside] for part, inside in chosen.items()})
    raise ValueError(f"{spec}: the repository has no Parquet files, and the hub has not converted it")


def choose(spec: str, files: Iterable[str], config: str | None) -> dict[str, list[str]]:
    """The files of one configuration, by part.

    >>> choose("hf:x/y", ["data/train-00000-of-00001.parquet", "data/test-00000-of-00001.parquet"], None)
    {'train': ['data/train-00000-of-00001.parquet'], 'test': ['data/test-00000-of-00001.parquet']}
    """
    configs: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for file in sorted(files):
        part, name = _place(file)
        configs[name][part].append(file)
    if config is None:
        config = "default" if "default" in configs else min(configs)
        if config != "default" and len(configs) > 1:
            raise ValueError(f"{spec} has the configurations {listed(configs, 10)}: add one, as in {spec}:{config}")
    if config not in configs:
        raise ValueError(f"{spec}: there is no configuration {config!r}, but {listed(configs, 10)}")
    parts = configs[config]
    for part, inside in parts.items():
        if (count := re.search(r"-of-(\d+)\.parquet$", inside[0])) and len(inside) < int(count[1]):
            raise ValueError(f"{spec}: only {len(inside)} of {int(count[1])} files of {part} are there")
    known = [part for part in ("train", "val", "test") if part in parts]
    return {part: parts[part] for part in (known if "train" in known else parts)}


def _place(file: str) -> tuple[str, str]:
    """The part and the configuration that a file's name and folders speak of."""
    *folders, name = file.split("/")
    words = [*re.split(r"[^A-Za-z]+", name), *reversed(folders)]
    part = next((part for word in words if (part := part_name(word))), WHOLE)
    rest = [folder for folder in folders if folder != "data" and not part_name(folder)]
    return part, "/".join(rest) or "default"


def _list(spec: str, repo: str, revision: str | None) -> tuple[dict[str, Any], Path | None]:
    """List the Parquet files of a revision by name, as the hub describes them; none if there is no such revision.

    Without a network the cache is listed, and its folder is returned as well.
    """
    import huggingface_hub
    from huggingface_hub import constants
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

    from vitreous.common.hub.client import metadata

    reason = "HF_HUB_OFFLINE is set"
    if not constants.HF_HUB_OFFLINE:
        try:
            # One question, asked once: listing the tree would go on asking for half a minute without a network.
            with metadata():
                about = huggingface_hub.HfApi().dataset_info(repo, revision=revision, timeout=10, files_metadata=True)
            files = [file for file in about.siblings or [] if str(file.rfilename).endswith(".parquet")]
            return {file.rfilename: file for file in files}, None
        except RevisionNotFoundError:
            return {}, None
        except GatedRepoError:
            raise OSError(f"{spec}: first accept its terms on its page, then log in with `hf auth login`") from None
        except RepositoryNotFoundError:
            raise ValueError(f"{spec}: the hub has no such data set, or it is private") from None
        except HfHubHTTPError as error:
            raise OSError(f"{spec}: {_line(error)}") from None
        except Exception as error:  # whatever the HTTP library of the day raises where there is no network
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
        raise OSError(f"{spec} is not in the cache, and {address} is out of reach ({reason})") from None
    return {path.relative_to(folder).as_posix(): None for path in folder.rglob("*.parquet")}, folder


def _download(spec: str, repo: str, revision: str | None, files: list[Any]) -> Path:
    """Fetch files into the cache, and return their folder there."""
    from vitreous.common.hub.client import check_space, fetch

    try:
        check_space(spec, sum(file.size or 0 for file in files))
        return fetch(repo, files, revision, repo_type="dataset")
    except Exception as error:
        raise OSError(f"{spec}: could not be downloaded: {_line(error)}") from error


def _line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
