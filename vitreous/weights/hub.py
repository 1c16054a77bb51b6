"""Downloads models from the Hugging Face Hub (`hf-hub:owner/name[@revision]`), and uploads models to it.

huggingface_hub downloads to its cache and reads its usual settings: HF_HOME, HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE.
Only the files needed for loading are downloaded, and each is verified by checksum. The cached snapshot is then loaded
like any other folder. Cached snapshots can also be loaded offline.
"""

import os
import re
import sys
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
from vitreous.weights.catalog import HUB_PREFIX, LICENSES
from vitreous.weights.io.containers import OPEN_CLIP_CONFIG, PICKLES, USUAL_NAMES
from vitreous.weights.io.errors import BadCheckpoint
from vitreous.weights.native import (
    CONFIG,
    FAMILIARITY,
    INT8,
    STATISTICS,
    WEIGHTS,
    check_not_run,
    is_checkpoint,
    load_folder,
    provenance_of,
)

CARD = "README.md"
DESCRIPTIONS = ("config.json", OPEN_CLIP_CONFIG, "preprocessor_config.json", CARD, FAMILIARITY, INT8)
SUFFIXES = ((".safetensors",), (".npz",), PICKLES)  # only the first group found in a repository is used
MAX_BYTES = 1 << 36  # 64 GiB, more than any published Vision Transformer needs
TIMEOUT_SECONDS = 10.0  # for a response from the Hub
LIBRARIES = {"huggingface": "transformers", "timm": "timm"}  # shown on the Hub as the library for a format
LOG_IN = "log in with `hf auth login`, or set HF_TOKEN"


@dataclass(frozen=True)
class Name:
    """A Hub repository and revision."""

    repository: str
    revision: str | None

    def __str__(self) -> str:
        return f"{HUB_PREFIX}{self.repository}" + (f"@{self.revision}" if self.revision else "")


@dataclass(frozen=True)
class Snapshot:
    """The cached files of one commit."""

    folder: Path
    repository: str

    def record(self, provenance: Mapping[str, Any]) -> dict[str, Any]:
        """Add the repository, commit and license to a model's provenance. Move a previous repository to `earlier`."""
        commit = self.folder.name
        record = dict(provenance)
        if record.get("file") == commit:  # name of the cache folder
            del record["file"]
        before = f"{record.get('repository')}@{record.get('commit')}"
        if "repository" in record and before != f"{self.repository}@{commit}":
            record["earlier"] = [*record.get("earlier", []), before]
        license = _license(self.folder / CARD) or LICENSES.get(self.repository)
        return record | {"repository": self.repository, "commit": commit} | ({"license": license} if license else {})


def parse(source: str | Path) -> Name:
    """Parse `hf-hub:owner/name[@revision]`."""
    text = source.as_posix() if isinstance(source, Path) else source
    repository, at, revision = text.removeprefix(HUB_PREFIX).partition("@")
    if not is_repository(repository):
        fail("source", text, f"{HUB_PREFIX}owner/name or {HUB_PREFIX}owner/name@revision")
    if at and (not re.fullmatch(r"\w[\w.+/-]*", revision) or ".." in revision):
        fail("source", text, f"{HUB_PREFIX}{repository} or {HUB_PREFIX}{repository}@REVISION (a branch, tag or commit)")
    return Name(repository, revision or None)


def is_repository(text: str) -> bool:
    """Return True if the text is a valid name of a Hub repository (`owner/name`)."""
    part = r"[A-Za-z0-9_]([\w.-]*\w)?"
    unusable = "--" in text or ".." in text or text.endswith(".git") or len(text) > 96
    return re.fullmatch(f"{part}/{part}", text, re.ASCII) is not None and not unusable


def choose(names: Collection[str]) -> list[str]:
    """Select the files needed for loading: the model descriptions, and weights in one file type."""
    return [name for name in DESCRIPTIONS if name in names] + _weights(names)


def _weights(names: Collection[str]) -> list[str]:
    for usual in USUAL_NAMES:
        if usual in names:
            return [usual, *_shards(names, usual)] if usual.endswith(".index.json") else [usual]
    for kind in SUFFIXES:
        files = sorted(name for name in names if "/" not in name and name.endswith(kind))
        if len(files) > 1:
            raise BadCheckpoint(
                f"has {len(files)} weight files ({', '.join(files[:5])}), and none is named {USUAL_NAMES[0]}: "
                "download the one you need and load it by its path"
            )
        if files:
            return files
    found = ", ".join(sorted(names)[:5]) or "no files"
    kinds = ", ".join(suffix for kind in SUFFIXES for suffix in kind)
    raise BadCheckpoint(f"has no weight files ({kinds}); found {found}")


def _shards(names: Collection[str], index: str) -> list[str]:
    stem, suffix = index.removesuffix(".index.json").rsplit(".", 1)
    matches = [match for name in names if (match := re.fullmatch(rf"{stem}-\d+-of-(\d+)\.{suffix}", name))]
    if not matches or len(matches) != int(matches[0][1]):
        expected = int(matches[0][1]) if matches else "at least one"
        raise BadCheckpoint(f"has {len(matches)} of the shards listed in {index}; expected {expected}")
    return sorted(match[0] for match in matches)


# ---- Downloading -----------------------------------------------------------------------------------------------------


def download(source: str | Path, notice: str = "") -> Snapshot:
    """Download the model files that are not in the cache and return the cached snapshot.

    `notice` is printed to stderr before a download, but not if all files are already in the cache.
    """
    import huggingface_hub
    from huggingface_hub import constants

    from vitreous.common.hub_client import check_commit, fetch, metadata

    name = parse(source)
    page = f"{constants.ENDPOINT}/{name.repository}"
    try:
        patterns = list(DESCRIPTIONS)  # the cached snapshot may be incomplete
        cached: Path | None = Path(
            huggingface_hub.snapshot_download(
                name.repository, revision=name.revision, local_files_only=True, allow_patterns=patterns
            )
        )
    except OSError:
        cached = None
    if constants.HF_HUB_OFFLINE:
        return _offline(name, cached, "HF_HUB_OFFLINE is set; unset it to download the model")
    try:
        # A single request, because listing the tree would retry for half a minute without a network.
        with metadata():
            about = huggingface_hub.HfApi(library_name="vitreous", library_version=vitreous.__version__).model_info(
                name.repository,
                revision=name.revision or constants.DEFAULT_REVISION,
                timeout=TIMEOUT_SECONDS,
                files_metadata=True,
            )
        commit = check_commit(about.sha)
    except Exception as error:  # the HTTP library raises various errors without a network
        if refused := _refusal(error, name, page):
            raise refused from None
        return _offline(name, cached, f"{page} cannot be reached ({_reason(error)}); try again later")
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
    if notice and os.environ.get("RANK", "0") == "0":
        print(notice, file=sys.stderr)
    try:
        folder = fetch(name.repository, new, name.revision)
    except Exception as error:
        raise _refusal(error, name, page) or OSError(
            f"{name} could not be downloaded from {page} ({_reason(error)}); try again (completed files are kept)"
        ) from None
    if folder.name != commit:
        raise OSError(f"{name} changed during the download; try again")
    return Snapshot(folder, name.repository)


class HubUnavailable(OSError):
    """Raised if a model is not in the cache and the Hub cannot be reached."""


def _offline(name: Name, cached: Path | None, reason: str) -> Snapshot:
    from huggingface_hub import constants

    if cached is None:
        raise HubUnavailable(f"{name} is not in the cache ({constants.HF_HUB_CACHE}), and {reason}")
    try:
        choose([file.name for file in cached.iterdir()])
    except BadCheckpoint as error:
        raise HubUnavailable(f"the cached copy of {name} is incomplete ({cached} {error}), and {reason}") from None
    return Snapshot(cached, name.repository)


# ---- Checks ----------------------------------------------------------------------------------------------------------


def _check_sizes(name: Name, files: list[Any]) -> None:
    """Raise if a size in the Hub listing is invalid or too large, or if there is too little free disk space."""
    from vitreous.common.hub_client import check_space

    for file in files:
        if not (file.size is None or (type(file.size) is int and file.size >= 0)):
            raise BadCheckpoint(f"{name}: the size of {file.rfilename} must be a number of bytes, got {file.size!r}")
        if file.rfilename.endswith((".json", ".md")) and (file.size or 0) > MAX_JSON_BYTES:
            raise BadCheckpoint(f"{name}: {file.rfilename} is {file.size:,} bytes; the maximum is {MAX_JSON_BYTES:,}")
    needed = sum(file.size or 0 for file in files)
    if needed > MAX_BYTES:
        limit = f"the maximum is {MAX_BYTES / 1e9:,.1f} GB"
        raise BadCheckpoint(f"{name} requires a download of {needed / 1e9:,.1f} GB; {limit}")
    check_space(str(name), needed)


def _license(card: Path) -> str | None:
    """Return the license in a model card's front matter, or None if it is missing or unreadable."""
    from huggingface_hub.repocard import metadata_load

    try:
        fields = (metadata_load(card) if card.stat().st_size < MAX_JSON_BYTES else None) or {}
        named = fields.get("license_name") if fields.get("license") == "other" else None
        license = named or fields.get("license")
    except Exception:  # no card, invalid text or invalid YAML
        return None
    return license[:100] if isinstance(license, str) else None


# ---- Uploading -------------------------------------------------------------------------------------------------------


def check_destination(push_to: str, argument: str = "push_to") -> str:
    """Validate a repository before anything is written, and return its name."""
    from huggingface_hub import constants

    repository = push_to.removeprefix(HUB_PREFIX)
    if not is_repository(repository):
        fail(argument, push_to, "owner/name")
    if constants.HF_HUB_OFFLINE:
        raise OSError(f"cannot push to {repository} because HF_HUB_OFFLINE is set; unset it first")
    return repository


def push(checkpoint: str | Path, repository: str, public: bool = False) -> str:
    """Upload a Vitreous checkpoint and its model card to a Hugging Face Hub repository, and return the commit URL.

    `repository` is hf-hub:owner/name or owner/name. If it does not exist, it is created, private unless `public`. The
    token is that of `hf auth login` or HF_TOKEN. Only the files of the checkpoint are uploaded, without the statistics
    of the training images that `extend` uses. A model card that you have edited is uploaded unchanged.
    """
    folder, name = Path(checkpoint), check_destination(repository, "repository")
    if folder.exists() and not is_checkpoint(folder):
        check_not_run(folder)
        advice = "convert it first with `vitreous convert SRC DST --to vitreous`"
        raise BadCheckpoint(f"{folder} is not a Vitreous checkpoint folder; {advice}")
    model = load_folder(folder)  # checks the files
    folder = folder if folder.is_dir() else folder.parent
    files = [folder / file for file in (WEIGHTS, CONFIG, FAMILIARITY, INT8) if (folder / file).is_file()]
    record, parameters = provenance_of(model), _parameters(model)
    card = model_card(model.config, name, parameters, record, f"{HUB_PREFIX}{name}")
    if (folder / CARD).is_file() and not (folder / CARD).is_symlink():  # a link could lead to a private file
        text = (folder / CARD).read_text(encoding="utf-8", errors="replace")
        written = model_card(model.config, "", parameters, record)
        if _without_title(text) != _without_title(written):
            card = text
    return _upload(files, card, name, f"{folder} was not pushed", private=not public)


def push_saved(
    model: Model, path: Path, format: str, repository: str, provenance: Mapping[str, Any] | None = None
) -> str:
    """Upload the files at `path`, which `vitreous.save` has written, and a model card. Return the commit URL.

    A missing repository is created with the account's default visibility. An existing model card is replaced.
    """
    record = {**provenance_of(model), **(provenance or {}), "vitreous": vitreous.__version__}
    source, library = f"{HUB_PREFIX}{repository}", LIBRARIES.get(format, "vitreous")
    card = model_card(model.config, repository, _parameters(model), record, source, library)
    # Statistics contain features of training images, which are not published.
    files = [path] if path.is_file() else sorted(file for file in path.iterdir() if file.name not in (CARD, STATISTICS))
    return _upload(files, card, repository, f"{path} was saved but not pushed")


def _parameters(model: Model) -> int:
    return sum(tensor.numel() for tensor in model.state_dict().values())


def _without_title(card: str) -> list[str]:
    return [line for line in card.splitlines() if not line.startswith("# ")]


def _upload(files: list[Path], card: str, repository: str, failure: str, private: bool | None = None) -> str:
    """Upload files and a card in one commit, and return the commit URL. Errors start with `failure`."""
    from huggingface_hub import CommitOperationAdd, HfApi, constants

    from vitreous.common.hub_client import metadata

    sent = {file.name for file in files} | {CARD}
    page = f"{constants.ENDPOINT}/{repository}"
    api = HfApi(library_name="vitreous", library_version=vitreous.__version__)
    try:
        with metadata():
            api.create_repo(repository, exist_ok=True, private=private)
            existing = {file.rfilename for file in api.model_info(repository).siblings or []}
            if conflicts := [file for file in choose(existing | sent) if file not in sent]:
                raise ValueError(
                    f"the repository contains {conflicts[0]}, which would interfere with loading this model: "
                    "delete it there or push to another repository"
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
            reason = f"a token with write access is required: {LOG_IN}"
        raise OSError(f"{failure} to {page}: {reason}") from error
    return str(commit.commit_url)


# ---- Errors ----------------------------------------------------------------------------------------------------------


def _refusal(error: Exception, name: Name, page: str) -> Exception | None:
    """Return the error to raise for a permanent Hub error, or None if a retry may succeed."""
    from huggingface_hub import constants
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    if isinstance(error, RevisionNotFoundError):
        revision = name.revision or constants.DEFAULT_REVISION
        return BadCheckpoint(f"{name}: {page} has no revision {revision!r}; use an existing branch, tag or commit")
    if isinstance(error, GatedRepoError):
        return OSError(f"{name} is gated: accept the terms on {page}, then {LOG_IN}")
    if _status(error) == 401 and "Invalid credentials" in _server_message(error):
        return OSError(f"{name}: {constants.ENDPOINT} rejected the token; {LOG_IN} to a valid token")
    # The Hub also sends 401 for missing repositories.
    if isinstance(error, RepositoryNotFoundError) or _status(error) == 401:
        return BadCheckpoint(f"{name}: {page} does not exist or is private; check the name or {LOG_IN}")
    if _status(error) == 403:
        return OSError(f"{name}: the token has no read access to {page}; {LOG_IN} to another token")
    return None


def _status(error: BaseException) -> int | None:
    """Return the HTTP status of the response, or None if there was no response."""
    return getattr(getattr(error, "response", None), "status_code", None)


def _reason(error: BaseException) -> str:
    """Return the innermost cause of an error in one line."""
    while error.__cause__ is not None and _status(error) is None:
        error = error.__cause__
    if _status(error) is not None:
        text = f"HTTP status {_status(error)}: {_server_message(error)}"
    else:
        text = (str(error).strip() or type(error).__name__).splitlines()[0]
    return single_spaced(text, 300).rstrip(":")


def _server_message(error: BaseException) -> str:
    """Return the Hub's error message."""
    return str(getattr(error, "server_message", None) or "")
