"""The `vitreous push` command."""

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg


def push(
    checkpoint: Annotated[Positional[Path], arg(metavar="CHECKPOINT")],
    repository: Annotated[Positional[str], arg(metavar="hf-hub:OWNER/NAME")],
    *,
    public: bool = False,
) -> None:
    """Upload a checkpoint with its model card to the Hugging Face Hub, in one commit. Nothing else is uploaded.

    Log in with `hf auth login`, or set HF_TOKEN to a token with write access.

    Example: vitreous push runs/first/best hf-hub:me/first

    Args:
        checkpoint: Vitreous checkpoint folder such as runs/first/best. Convert other formats first.
        repository: Repository on the Hub. It is created if it does not exist.
        public: Create the repository as public; by default, it is private. An existing one keeps its visibility.
    """
    from vitreous.weights.hub import push as push_checkpoint

    print(push_checkpoint(checkpoint, repository, public))
