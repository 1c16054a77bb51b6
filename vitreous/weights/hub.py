"""Downloads models from the Hugging Face hub, and uploads them: `hf-hub:owner/name`, `hf-hub:owner/name@revision`.

huggingface_hub fetches them into its cache, with its own settings: HF_HOME, HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE.
Only the files that loading needs are fetched, and compared with the hub's checksums; then the folder in the cache is
loaded like any other. Without a network, the cache is used.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import vitreous
from vitreous.common.checks import fail
from vitreous.common.text import single_spaced
from vitreous.common.untrusted_files import MAX_JSON_BYTES
from vitreous.model.protocol import Model
from vitreous.weights.card import model_card
from vitreous.weights.io.containers import PICKLES, USUAL_NAMES
from vitreous.weights.io.errors import BadCheckpoint
from vitreous.weights.native import provenance_of

PREFIX = "hf-hub:"
CARD = "README.md"
DESCRIPTIONS = ("config.json", "preprocessor_config.json", CARD)
SUFFIXES = ((".safetensors",), (".npz",), PICKLES)  # the first group that a repository has is used alone
MAX_BYTES = 1 << 36  # 64 GiB, more than the largest published Vision Transformer
TIMEOUT_SECONDS = 10.0  # for an answer of the hub
LIBRARIES = {"huggingface": "transformers", "timm": "timm"}  # that the hub offers to open a format with
LOG_IN = "log in with `hf auth login`, or set HF_TOKEN"


@dataclass(frozen=True)
class Name:
    """A repository of the hub and a revision."""

    repository: str
    revision: str | None

    def __str__(self) -> str:
        return f"{PREFIX}{self.repository}" + (f"@{self.revision}" if self.revision else "")


@dataclass(frozen=True)
class Snapshot:
    """The files of one commit in the cache."""

    folder: Path
    repository: str

    def record(self, provenance: Mapping[str, Any]) -> dict[str, Any]:
        """Add the repository, commit and license to a model's provenance; an earlier repository goes to `earlier`."""
        commit = self.folder.name
        record = dict(provenance)
        if record.get("file") == commit:  # the name of the cache folder
            del record["file"]
        before = f"{record.get('repository')}@{record.get('commit')}"
        if "repository" in record and before != f"{self.repository}@{commit}":
            record["earlier"] = [*record.get("earlier", []), before]
        license = _license(self.folder / CARD)
        return record | {"repository": self.repository, "commit": commit} | ({"license": license} if license else {})


def parse(source: str | Path) -> Name:
    """Parse the repository and revision of `hf-hub:...`."""
    text = source.as_posix() if isinstance(source, Path) else source
    repository, at, revision = text.removeprefix(PREFIX).partition("@")
    if not is_repository(repository):
        fail("source", text, f"{PREFIX}owner/name or {PREFIX}owner/name@revision")
    if at and (not re.fullmatch(r"\w[\w.+/-]*", revision) or ".." in revision):
        fail("source", text, f"{PREFIX}{repository}@ and a branch, a tag or a commit, or {PREFIX}{repository}")
    return Name(repository, revision or None)


def is_repository(text: str) -> bool:
    """Return True for a valid `owner/name` of the hub."""
    part = r"[A-Za-z0-9_]([\w.-]*\w)?"
    unusable = "--" in text or ".." in text or text.endswith(".git") or len(text) > 96
    return re.fullmatch(f"{part}/{part}", text, re.ASCII) is not None and not unusable


def choose(names: Collection[str]) -> list[str]:
    """Choose the files that loading needs: descriptions of the model, and weights of one kind."""
    return [name for name in DESCRIPTIONS if name in names] + _weights(names)


def _weights(names: Collection[str]) -> list[str]:
    for usual in USUAL_NAMES:
        if usual in names:
            return [usual, *_shards(names, usual)] if usual.endswith(".index.json") else [usual]
    for kind in SUFFIXES:
        files = sorted(name for name in names if "/" not in name and name.endswith(kind))
        if len(files) > 1:
            raise BadCheckpoint(
                f"has {len(files)} files of weights ({', '.join(files[:5])}), and none is called {USUAL_NAMES[0]}: "
                "download the one that you need and load it by its path"
            )
        if files:
            return files
    has = ", ".join(sorted(names)[:5]) or "nothing"
    kinds = ", ".join(suffix for kind in SUFFIXES for suffix in kind)
    raise BadCheckpoint(f"has no weights ({kinds}); it has {has}")


def _shards(names: Collection[str], index: str) -> list[str]:
    stem, suffix = index.removesuffix(".index.json").rsplit(".", 1)
    matches = [match for name in names if (match := re.fullmatch(rf"{stem}-\d+-of-(\d+)\.{suffix}", name))]
    if not matches or len(matches) != int(matches[0][1]):
        whole = f"all {int(matches[0][1])}" if matches else "any"
        raise BadCheckpoint(f"has {len(matches)} of the files of {index}, but must have {whole}")
    return sorted(match[0] for match in matches)


# ---- Fetching --------------------------------------------------------------------------------------------------------


def download(source: str | Path) -> Snapshot:
    """Fetch the files of a model that are not in the cache, and return the folder in the cache."""
    import huggingface_hub
    from huggingface_hub import constants

    from vitreous.common.hub_client import check_commit, fetch, metadata

    name = parse(source)
    page = f"{constants.ENDPOINT}/{name.repository}"
    try:
        patterns = list(DESCRIPTIONS)  # the folder in the cache may be incomplete
        cached: Path | None = Path(
            huggingface_hub.snapshot_download(
                name.repository, revision=name.revision, local_files_only=True, allow_patterns=patterns
            )
        )
    except OSError:
        cached = None
    if constants.HF_HUB_OFFLINE:
        return _offline(name, cached, "HF_HUB_OFFLINE is set: unset it once to fetch the model")
    try:
        # One request: listing the tree would retry for half a minute without a network.
        with metadata():
            about = huggingface_hub.HfApi(library_name="vitreous", library_version=vitreous.__version__).model_info(
                name.repository,
                revision=name.revision or constants.DEFAULT_REVISION,
                timeout=TIMEOUT_SECONDS,
                files_metadata=True,
            )
        commit = check_commit(about.sha)
    except Exception as error:  # whatever the HTTP library raises without a network
        if refused := _refusal(error, name, page):
            raise refused from None
        return _offline(name, cached, f"{page} cannot be reached ({_reason(error)}): try again later")
    listing = {file.rfilename: file for file in about.siblings or [] if isinstance(file.rfilename, str)}
    try:
        wanted = choose(listing)
    except BadCheckpoint as error:
        raise BadCheckpoint(f"{name} {error}") from None
    old = cached if cached is not None and cached.name == commit else None
    new = [listing[file] for file in wanted if old is None or not (old / file).exists()]
    if old is not None and not new:
        return Snapshot(old, name.repository)
    _check_sizes(name, new)
    try:
        folder = fetch(name.repository, new, name.revision)
    except Exception as error:
        raise _refusal(error, name, page) or OSError(
            f"{name} could not be fetched from {page} ({_reason(error)}): try again, complete files are kept"
        ) from None
    if folder.name != commit:
        raise OSError(f"{name} has changed during the download: try again")
    return Snapshot(folder, name.repository)


def _offline(name: Name, cached: Path | None, reason: str) -> Snapshot:
    from huggingface_hub import constants

    if cached is None:
        raise OSError(f"{name} is not in the cache ({constants.HF_HUB_CACHE}), and {reason}")
    try:
        choose([file.name for file in cached.iterdir()])
    except BadCheckpoint as error:
        raise OSError(f"{name} is incomplete in the cache ({cached} {error}), and {reason}") from None
    return Snapshot(cached, name.repository)


# ---- Checks ----------------------------------------------------------------------------------------------------------


def _check_sizes(name: Name, files: list[Any]) -> None:
    """Raise for sizes in the hub's listing that are invalid or too large, before anything is fetched."""
    from vitreous.common.hub_client import check_space

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
    """Return the license in the front matter of a card; None if there is none or it cannot be read."""
    from huggingface_hub.repocard import metadata_load

    try:
        fields = (metadata_load(card) if card.stat().st_size < MAX_JSON_BYTES else None) or {}
        named = fields.get("license_name") if fields.get("license") == "other" else None
        license = named or fields.get("license")
    except Exception:  # no card, invalid text or invalid YAML
        return None
    return license[:100] if isinstance(license, str) else None


# ---- Uploading -------------------------------------------------------------------------------------------------------


def check_destination(push_to: str) -> str:
    """Validate the repository to upload to before anything is written."""
    from huggingface_hub import constants

    repository = push_to.removeprefix(PREFIX)
    if not is_repository(repository):
        fail("push_to", push_to, "owner/name")
    if constants.HF_HUB_OFFLINE:
        raise OSError(f"cannot push to {repository}, because HF_HUB_OFFLINE is set: unset it")
    return repository


def push(model: Model, path: Path, format: str, repository: str, provenance: Mapping[str, Any] | None = None) -> str:
    """Upload what was written at `path` in one commit, with a model card, and return the address of the commit.

    A missing repository is created with the visibility that the account's settings give. A card there is replaced.
    """
    from huggingface_hub import CommitOperationAdd, HfApi, constants

    from vitreous.common.hub_client import metadata

    record = {**provenance_of(model), **(provenance or {}), "vitreous": vitreous.__version__}
    parameters = sum(tensor.numel() for tensor in model.state_dict().values())
    card = model_card(
        model.config, repository, parameters, record, f"{PREFIX}{repository}", LIBRARIES.get(format, "vitreous")
    )
    files = [path] if path.is_file() else sorted(file for file in path.iterdir() if file.name != CARD)
    sent = {file.name for file in files} | {CARD}
    page = f"{constants.ENDPOINT}/{repository}"
    api = HfApi(library_name="vitreous", library_version=vitreous.__version__)
    try:
        with metadata():
            api.create_repo(repository, exist_ok=True)
            there = {file.rfilename for file in api.model_info(repository).siblings or []}
            if others := [file for file in choose(there | sent) if file not in sent]:
                raise ValueError(
                    f"it holds {others[0]}, which would be loaded with this model: "
                    "delete it there, or push to another repository"
                )
            commit = api.create_commit(
                repository,
                [
                    *(CommitOperationAdd(path_in_repo=file.name, path_or_fileobj=file) for file in files),
                    CommitOperationAdd(path_in_repo=CARD, path_or_fileobj=card.encode("utf-8", "replace")),
                ],
                commit_message=f"Upload with Vitreous {vitreous.__version__}",
            )
    except Exception as error:
        reason = _reason(error)
        if _status(error) in (401, 403):
            reason = f"it needs a token with write access: {LOG_IN}"
        raise OSError(f"{path} is written, but was not pushed to {page}: {reason}") from error
    return str(commit.commit_url)


# ---- Errors ----------------------------------------------------------------------------------------------------------


def _refusal(error: Exception, name: Name, page: str) -> Exception | None:
    """Return the error to raise for an answer of the hub that would not change on retry; otherwise None."""
    from huggingface_hub import constants
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    if isinstance(error, RevisionNotFoundError):
        wrong = f"has no revision {name.revision or constants.DEFAULT_REVISION!r}"
        return BadCheckpoint(f"{name}: {page} {wrong}: use an existing branch, tag or commit")
    if isinstance(error, GatedRepoError):
        return OSError(f"{name}: access requires consent: accept the terms on {page}, then {LOG_IN}")
    if _status(error) == 401 and "Invalid credentials" in _server_message(error):
        return OSError(f"{name}: {constants.ENDPOINT} rejects the token: {LOG_IN} to another one")
    if isinstance(error, RepositoryNotFoundError) or _status(error) == 401:  # also the status of missing repositories
        return BadCheckpoint(f"{name}: {page} does not exist or is private: check the name; if it is private, {LOG_IN}")
    if _status(error) == 403:
        return OSError(f"{name}: {page} may not be read with this token: {LOG_IN} to another one")
    return None


def _status(error: BaseException) -> int | None:
    """Return the HTTP status of an answer, if there was one."""
    return getattr(getattr(error, "response", None), "status_code", None)


def _reason(error: BaseException) -> str:
    """Return the innermost reason of a chain of errors, in one line."""
    while error.__cause__ is not None and _status(error) is None:
        error = error.__cause__
    if _status(error) is not None:
        text = f"it answered with status {_status(error)}: {_server_message(error)}"
    else:
        text = (str(error).strip() or type(error).__name__).splitlines()[0]
    return single_spaced(text, 300).rstrip(":")


def _server_message(error: BaseException) -> str:
    """Return the message of the hub about an error."""
    return str(getattr(error, "server_message", None) or "")
