"""What goes wrong between here and the Hugging Face hub, each in one line that says what would help."""

from vitreous.weights.io.safetensors_file import BadCheckpoint

LOG_IN = "log in with `hf auth login`, or set HF_TOKEN"


def refusal(error: Exception, name: str, repository: str, revision: str | None) -> Exception | None:
    """What to raise where the hub has answered, and would answer the same again; otherwise None."""
    from huggingface_hub import constants
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    page = f"{constants.ENDPOINT}/{repository}"
    if isinstance(error, RevisionNotFoundError):
        wrong = f"has no revision {revision or constants.DEFAULT_REVISION!r}"
        return BadCheckpoint(f"{name}: {page} {wrong}: give a branch, a tag or a commit that it has")
    if isinstance(error, GatedRepoError):
        return OSError(f"{name}: its owner asks for consent: accept the terms on {page}, then {LOG_IN}")
    if status(error) == 401 and "Invalid credentials" in _said(error):
        return OSError(f"{name}: {constants.ENDPOINT} does not know the token that it was sent: {LOG_IN} to another")
    if (
        isinstance(error, RepositoryNotFoundError) or status(error) == 401
    ):  # which the hub also says of what is not there
        return BadCheckpoint(
            f"{name}: there is no {page}, or it is private: check the name; if it is private, {LOG_IN}"
        )
    if status(error) == 403:
        return OSError(f"{name}: {page} may not be read with the token that it was sent: {LOG_IN} to another")
    return None


def status(error: BaseException) -> int | None:
    """The HTTP status of an answer, if there was one."""
    return getattr(getattr(error, "response", None), "status_code", None)


def line(error: BaseException, length: int = 300) -> str:
    """The reason for an error on one line: of those that a library has wrapped into each other, the innermost."""
    while error.__cause__ is not None and status(error) is None:
        error = error.__cause__
    if status(error) is not None:
        text = f"it answered with status {status(error)}: {_said(error)}"
    else:
        text = (str(error).strip() or type(error).__name__).splitlines()[0]
    text = " ".join("".join(char if char.isprintable() else " " for char in text).split()).rstrip(":.")
    return text if len(text) <= length else text[: length - 3] + "..."


def _said(error: BaseException) -> str:
    """What the hub itself said of an error."""
    return str(getattr(error, "server_message", None) or "")
