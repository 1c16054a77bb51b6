"""The verb `vitreous train`."""

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from tyro.conf import arg
from tyro.constructors import PrimitiveConstructorSpec

from vitreous.common.codec import parse_fields
from vitreous.common.text import printable
from vitreous.tasks.config import Augment
from vitreous.training import Optim, TrainConfig

FIELDS = PrimitiveConstructorSpec[Mapping[str, Any]](
    nargs="*",
    metavar="FIELD=JSON",
    instance_from_str=lambda texts: {"texts": tuple(texts)},  # parsed after the others, for the same error messages
    is_instance=lambda value: isinstance(value, Mapping),
    str_from_instance=lambda fields: [f"{name}={value}" for name, value in fields.items()],
)


@dataclass(frozen=True)
class Flags(TrainConfig):
    """TrainConfig as flags: --set in place of `overrides`, and headings for the groups."""

    overrides: Annotated[Mapping[str, Any], arg(name="set"), FIELDS] = field(default_factory=dict)
    """Other fields of the model's config, as field=JSON: --set registers=4 'position={"kind": "Rotary2d"}'."""
    optim: Annotated[Optim, arg(name="optimizer")] = field(default_factory=Optim)
    augment: Annotated[Augment, arg(name="augmentation")] = field(default_factory=Augment)

    def config(self) -> TrainConfig:
        """The config that the flags describe."""
        fields = dict(vars(self))
        if "texts" in self.overrides:
            fields["overrides"] = parse_fields(self.overrides["texts"])
        return TrainConfig(**fields)


def train(flags: Annotated[Flags, arg(name="")]) -> None:
    """Train on a folder of images, or on anything else that --data takes. Omitted settings are chosen automatically.

    Example: vitreous train --data images/ --out runs/first
    """
    run_flags(flags.config(), shlex.join(["vitreous", *sys.argv[1:]]))


def run_flags(config: TrainConfig, command: str) -> None:
    """Train, and exit like a process that was killed if a signal stops the run."""
    from vitreous.training import run

    try:
        run.train(config, command=command)
    except run.Interrupted as stop:
        print(printable(f"vitreous: {stop}"), file=sys.stderr)
        sys.exit(128 + stop.signal_number)
