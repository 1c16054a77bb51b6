"""The `vitreous train` command."""

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Suppress, arg
from tyro.constructors import PrimitiveConstructorSpec

from vitreous.cli import ImageSize
from vitreous.common.checks import BadValue
from vitreous.common.codec import parse_fields
from vitreous.common.text import printable
from vitreous.tasks.config import Augment
from vitreous.training import Optim, TrainConfig

if TYPE_CHECKING:
    from vitreous.training.run import Run

FIELDS = PrimitiveConstructorSpec[Mapping[str, Any]](
    nargs="*",
    metavar="FIELD=JSON",
    instance_from_str=lambda texts: {"texts": tuple(texts)},  # parsed in config(), after the other flags
    is_instance=lambda value: isinstance(value, Mapping),
    str_from_instance=lambda fields: [f"{name}={value}" for name, value in fields.items()],
)


@dataclass(frozen=True)
class Flags(TrainConfig):
    """TrainConfig as command-line flags. `overrides` becomes --set, and option groups get headings."""

    data: Annotated[str, arg(metavar="DATA")] = ""
    init: Annotated[str | None, arg(metavar="CHECKPOINT|NAME")] = None
    image_size: ImageSize = ()
    data_root: Path | None = None
    out: Path | None = None
    overrides: Annotated[Mapping[str, Any], arg(name="set"), FIELDS] = field(default_factory=dict)
    """Other fields of the model config, as field=JSON, e.g. --set registers=4 'position={"kind": "Rotary2d"}'."""
    optim: Annotated[Optim, arg(name="optimizer")] = field(default_factory=Optim)
    augment: Annotated[Augment, arg(name="augmentation")] = field(default_factory=Augment)
    cache_features: Suppress[bool | None] = None
    compile: Suppress[bool | Literal["blocks", "graphs"] | None] = None  # set by the next two flags
    compile_always: Annotated[bool, arg(name="compile")] = False
    """Compile the whole model with torch.compile, which takes a minute. By default, a GPU uses CUDA graphs, and only
    the transformer blocks are compiled, in 10 to 20 seconds, if that makes the run shorter."""
    no_compile: bool = False
    """Disable torch.compile and CUDA graphs."""

    def config(self) -> TrainConfig:
        """Return the TrainConfig for these flags."""
        fields = dict(vars(self))
        always, never = fields.pop("compile_always"), fields.pop("no_compile")
        if always and never:
            raise BadValue("--compile and --no-compile cannot be combined")
        if always or never:
            fields["compile"] = always
        if "texts" in self.overrides:
            fields["overrides"] = parse_fields(self.overrides["texts"])
        return TrainConfig(**fields)


def train(flags: Annotated[Flags, arg(name="")]) -> None:
    """Train a model on a folder of images or another data set. Settings that you omit are chosen automatically.

    Example: vitreous train --data images/ --out runs/first
    """
    run_flags(flags.config(), shlex.join(["vitreous", *sys.argv[1:]]))


def run_flags(config: TrainConfig, command: str) -> "Run":
    """Train a model. If a signal interrupts the run, exit with status 128 + the signal number."""
    from vitreous.training.run import Interrupted, train

    try:
        return train(config, command=command)
    except Interrupted as stop:
        print(printable(f"vitreous: {stop}"), file=sys.stderr)
        sys.exit(128 + stop.signal_number)
