"""`vitreous.save(..., push_to="owner/name")`: a checkpoint that was just written, sent to the Hugging Face hub.

One commit has all of its files and a model card. Nothing is sent that was not written by this very call.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import vitreous
from vitreous.common.checks import fail
from vitreous.model.kinds import AnyModel
from vitreous.weights.adapt import provenance_of
from vitreous.weights.card import model_card
from vitreous.weights.hub import PREFIX, choose, is_repository
from vitreous.weights.hub_errors import LOG_IN, line, status

# Whose files they are is whose library the hub should offer to open them with.
LIBRARIES = {"huggingface": "transformers", "timm": "timm"}
CARD = "README.md"


def check_destination(push_to: str) -> str:
    """The repository, said to be wrong before anything is written."""
    from huggingface_hub import constants

    repository = push_to.removeprefix(PREFIX)
    if not is_repository(repository):
        fail("push_to", push_to, "owner/name, as in the address of a page of the hub")
    if constants.HF_HUB_OFFLINE:
        raise OSError(f"nothing can be pushed to {repository}, because HF_HUB_OFFLINE is set: unset it")
    return repository


def push(model: AnyModel, path: Path, format: str, repository: str, provenance: Mapping[str, Any] | None = None) -> str:
    """Send what was written at `path`. Returns the address of the commit.

    The repository is made if there is none, as public or private as the account makes them. The model card takes the
    place of one that was there.
    """
    from huggingface_hub import CommitOperationAdd, HfApi, constants

    from vitreous.common.hub.client import metadata

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
            if strangers := [file for file in choose(there | sent) if file not in sent]:
                raise ValueError(
                    f"it holds {strangers[0]}, which would be read as a part of this model: "
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
        reason = line(error)
        if status(error) in (401, 403):
            reason = f"it takes a token that may write there: {LOG_IN} to such a one"
        raise OSError(f"{path} is written, but was not pushed to {page}: {reason}") from error
    return str(commit.commit_url)
