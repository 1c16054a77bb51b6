"""Models of the Hugging Face hub: `hf-hub:owner/name`, or `hf-hub:owner/name@revision`.

huggingface_hub fetches them into its cache, with its own settings: HF_HOME, HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE.
Only the files that loading reads are fetched, and compared with the hub's checksums when they arrive; then the folder
in the cache is loaded as any other. Nothing in it is executed. Without a network, what the cache has is enough.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import vitreous
from vitreous.common.checks import fail
from vitreous.common.json_files import MAX_JSON_BYTES
from vitreous.weights.hub_errors import line, refusal
from vitreous.weights.io.containers import PICKLES, USUAL
from vitreous.weights.io.safetensors_file import BadCheckpoint

PREFIX = "hf-hub:"
BESIDE = ("config.json", "preprocessor_config.json", "README.md")
KINDS = ((".safetensors",), (".npz",), PICKLES)  # of which the first that a repository has is taken, alone
MAX_BYTES = 1 << 36  # 64 GiB, more than the largest Vision Transformer that was published
SECONDS = 10.0  # that the hub has to answer a question


@dataclass(frozen=True)
class Name:
    """A model on the hub, as the user named it."""

    repository: str
    revision: str | None

    def __str__(self) -> str:
        return f"{PREFIX}{self.repository}" + (f"@{self.revision}" if self.revision else "")


@dataclass(frozen=True)
class Snapshot:
    """The files of a model at one commit, in the cache."""

    folder: Path
    repository: str

    def record(self, provenance: Mapping[str, Any]) -> dict[str, Any]:
        """What the model's own provenance becomes: with where it was found, and the license that the card there says.

        Where a model came from before it was put there is kept as `earlier`.
        """
        commit = self.folder.name
        record = dict(provenance)
        if record.get("file") == commit:  # the name of the folder in the cache
            del record["file"]
        before = f"{record.get('repository')}@{record.get('commit')}"
        if "repository" in record and before != f"{self.repository}@{commit}":
            record["earlier"] = [*record.get("earlier", []), before]
        license = _license(self.folder / "README.md")
        return record | {"repository": self.repository, "commit": commit} | ({"license": license} if license else {})


def is_hub(source: str | Path) -> bool:
    return str(source).startswith(PREFIX)


def parse(source: str | Path) -> Name:
    """The repository and revision that `hf-hub:...` names.

    >>> parse("hf-hub:google/vit-base-patch16-224@main")
    Name(repository='google/vit-base-patch16-224', revision='main')
    """
    text = source.as_posix() if isinstance(source, Path) else source
    repository, at, revision = text.removeprefix(PREFIX).partition("@")
    if not is_repository(repository):
        fail("source", text, f"{PREFIX}owner/name or {PREFIX}owner/name@revision, with the name that its page has")
    if at and (not re.fullmatch(r"\w[\w.+/-]*", revision) or ".." in revision):
        fail("source", text, f"{PREFIX}{repository}@ and a branch, a tag or a commit, or {PREFIX}{repository}")
    return Name(repository, revision or None)


def is_repository(text: str) -> bool:
    """Whether this is an owner and a name, as the hub allows them."""
    part = r"[A-Za-z0-9_]([\w.-]*\w)?"
    unusable = "--" in text or ".." in text or text.endswith(".git") or len(text) > 96
    return re.fullmatch(f"{part}/{part}", text, re.ASCII) is not None and not unusable


def choose(names: Collection[str]) -> list[str]:
    """The files of a repository that loading reads: what describes the model, and its weights, of one kind only.

    >>> choose(["README.md", "config.json", "model.safetensors", "pytorch_model.bin", "train.py"])
    ['config.json', 'README.md', 'model.safetensors']
    """
    return [name for name in BESIDE if name in names] + _weights(names)


def _weights(names: Collection[str]) -> list[str]:
    for usual in USUAL:
        if usual in names:
            return [usual, *_shards(names, usual)] if usual.endswith(".index.json") else [usual]
    for kind in KINDS:
        files = sorted(name for name in names if "/" not in name and name.endswith(kind))
        if len(files) > 1:
            raise BadCheckpoint(
                f"has {len(files)} files of weights ({', '.join(files[:5])}), and which is meant cannot be told: "
                f"none is called {USUAL[0]}; one that is downloaded can be loaded by its path"
            )
        if files:
            return files
    has = ", ".join(sorted(names)[:5]) or "nothing"
    kinds = ", ".join(suffix for kind in KINDS for suffix in kind)
    raise BadCheckpoint(f"has no weights, of which the names end in {kinds}; it has {has}")


def _shards(names: Collection[str], index: str) -> list[str]:
    stem, suffix = index.removesuffix(".index.json").rsplit(".", 1)
    matches = [match for name in names if (match := re.fullmatch(rf"{stem}-\d+-of-(\d+)\.{suffix}", name))]
    if not matches or len(matches) != int(matches[0][1]):
        whole = f"all {int(matches[0][1])}" if matches else "any"
        raise BadCheckpoint(f"has {len(matches)} of the files that {index} speaks of, but must have {whole}")
    return sorted(match[0] for match in matches)


# ---- Fetching --------------------------------------------------------------------------------------------------------


def download(source: str | Path) -> Snapshot:
    """Fetch the files of a model that are not in the cache yet, and return the folder in the cache."""
    import huggingface_hub
    from huggingface_hub import constants

    from vitreous.common.hub.client import check_commit, metadata

    name = parse(source)
    cached = _cached(name)
    if constants.HF_HUB_OFFLINE:
        return _offline(name, cached, "HF_HUB_OFFLINE forbids to fetch it: unset it, once")
    try:
        # Asked once: without a network, listing the tree would go on asking for half a minute.
        with metadata():
            about = huggingface_hub.HfApi(library_name="vitreous", library_version=vitreous.__version__).model_info(
                name.repository,
                revision=name.revision or constants.DEFAULT_REVISION,
                timeout=SECONDS,
                files_metadata=True,
            )
        commit = check_commit(about.sha)
    except Exception as error:  # whatever the HTTP library of the day raises where there is no network
        if refused := refusal(error, str(name), name.repository, name.revision):
            raise refused from None
        page = f"{constants.ENDPOINT}/{name.repository}"
        return _offline(name, cached, f"{page} is out of reach ({line(error)}): try again later")
    listing = {file.rfilename: file for file in about.siblings or [] if isinstance(file.rfilename, str)}
    wanted = _chosen(name, listing)
    old = cached if cached is not None and cached.name == commit else None
    new = [listing[file] for file in wanted if old is None or not (old / file).exists()]
    if old is not None and not new:
        return Snapshot(old, name.repository)
    _check_sizes(name, new)
    folder = _fetch(name, new)
    if folder.name != commit:
        raise OSError(f"{name} was changed while it was being fetched: try again")
    return Snapshot(folder, name.repository)


def _cached(name: Name) -> Path | None:
    """The folder that the cache has for this revision, perhaps without all of its files."""
    import huggingface_hub

    try:
        return Path(
            huggingface_hub.snapshot_download(
                name.repository, revision=name.revision, local_files_only=True, allow_patterns=list(BESIDE)
            )
        )
    except OSError:
        return None


def _offline(name: Name, cached: Path | None, reason: str) -> Snapshot:
    from huggingface_hub import constants

    if cached is None:
        raise OSError(f"{name} is not in the cache ({constants.HF_HUB_CACHE}), and {reason}")
    try:
        choose([file.name for file in cached.iterdir()])
    except BadCheckpoint as error:
        raise OSError(f"{name} is not whole in the cache ({cached} {error}), and {reason}") from None
    return Snapshot(cached, name.repository)


def _chosen(name: Name, listing: Collection[str]) -> list[str]:
    try:
        return choose(listing)
    except BadCheckpoint as error:
        raise BadCheckpoint(f"{name} {error}") from None


def _fetch(name: Name, files: list[Any]) -> Path:
    from huggingface_hub import constants

    from vitreous.common.hub.client import fetch

    try:
        return fetch(name.repository, files, name.revision)
    except Exception as error:
        page = f"{constants.ENDPOINT}/{name.repository}"
        raise refusal(error, str(name), name.repository, name.revision) or OSError(
            f"{name} was not fetched whole from {page} ({line(error)}): try again, files that are whole are kept"
        ) from None


# ---- Checks of files -------------------------------------------------------------------------------------------------


def _check_sizes(name: Name, files: list[Any]) -> None:
    """Raise for sizes in the hub's listing that are invalid or too large, before anything is fetched."""
    from vitreous.common.hub.client import check_space

    for file in files:
        if not (file.size is None or (type(file.size) is int and file.size >= 0)):
            raise BadCheckpoint(f"{name}: {file.rfilename} has the size {file.size!r}, but must have a number of bytes")
        if file.rfilename.endswith((".json", ".md")) and (file.size or 0) > MAX_JSON_BYTES:
            most = f"but must have at most {MAX_JSON_BYTES:,}"
            raise BadCheckpoint(f"{name}: {file.rfilename} has {file.size:,} bytes, {most}")
    needed = sum(file.size or 0 for file in files)
    if needed > MAX_BYTES:
        raise BadCheckpoint(f"{name} has {needed / 1e9:,.1f} GB, but must have at most {MAX_BYTES / 1e9:,.1f} GB")
    check_space(str(name), needed)


def _license(card: Path) -> str | None:
    """What the front matter of a card calls the license. A card that cannot be read says nothing."""
    from huggingface_hub.repocard import metadata_load

    try:
        fields = (metadata_load(card) if card.stat().st_size < MAX_JSON_BYTES else None) or {}
        named = fields.get("license_name") if fields.get("license") == "other" else None
        license = named or fields.get("license")
    except Exception:  # YAML that is none, text that is none, no card
        return None
    return license[:100] if isinstance(license, str) else None
