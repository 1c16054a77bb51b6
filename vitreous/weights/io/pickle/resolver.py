"""Who answers a pickle that reaches out of itself, and what stands for that which it keeps beside its tensors."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

ADVICE = "nothing of it was executed; ask for a file with only the weights"


@dataclass(frozen=True)
class Ignored:
    """An object beside the weights, such as the settings of a training: its class by name, and nothing of what it held.

    A pickle may fill it with anything, which is forgotten; it may not call it, and find nothing in it.
    """

    name: str


class Maker(ABC):
    """Who answers the five opcodes through which a pickle reaches out of itself."""

    @abstractmethod
    def find(self, name: str) -> object:
        """GLOBAL: what a dotted name stands for."""

    @abstractmethod
    def call(self, function: object, arguments: tuple[object, ...]) -> object:
        """REDUCE: what a function that was found makes of its arguments."""

    @abstractmethod
    def new(self, kind: object) -> Ignored:
        """NEWOBJ: an object of a class that was found."""

    @abstractmethod
    def fill(self, made: object, state: object) -> None:
        """BUILD: complete something that was made."""

    @abstractmethod
    def refer(self, identity: object) -> object:
        """BINPERSID: something that lies outside the pickle."""
