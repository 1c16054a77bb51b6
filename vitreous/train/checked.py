"""Configs that look at themselves, and when."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from vitreous.model.checks import fail


class Checked:
    """A config that looks at itself when it is made."""

    later: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not Checked.later:
            self.check()

    def check(self) -> None:
        """Raise what is wrong."""


@contextmanager
def checked_later() -> Iterator[None]:
    """For the command line, whose parser would put what is wrong into a box of its own, between names of its own."""
    Checked.later = True
    try:
        yield
    finally:
        Checked.later = False


def refuse_unless(used: bool, said: Any, default: Any, use: str, names: tuple[str, ...] = ()) -> None:
    """Fields of a config that were set although nothing will look at them. `names`: only of these."""
    for one in dataclasses.fields(said):
        value = getattr(said, one.name)
        if not used and value != getattr(default, one.name) and (not names or one.name in names):
            fail(one.name, value, f"left out, or used with {use}")
