"""The verb `vitreous train`."""

import shlex
import sys

import tyro
from tyro.conf import OmitArgPrefixes

from vitreous.cli.errors import print_own_warnings, refuse
from vitreous.cli.flags import FLAGS, lists_together
from vitreous.common.text import printable
from vitreous.common.threads import spin_briefly
from vitreous.training.config import TrainConfig


def train(config: OmitArgPrefixes[TrainConfig]) -> None:
    """Train on a folder of pictures, or on anything else that --data takes; what is left out is chosen and said.

    Example: vitreous train --data pictures/ --out runs/first
    """
    _train(config, shlex.join(["vitreous", *sys.argv[1:]]))


def train_recipe(config: TrainConfig) -> None:
    """What a recipe's `python -m recipes.NAME` runs: its config, with whatever flags change."""
    spin_briefly()
    print_own_warnings()
    try:
        words = lists_together(sys.argv[1:])
        _train(tyro.cli(TrainConfig, default=config, config=FLAGS, args=words), shlex.join(["python", *sys.argv]))
    except (ValueError, OSError) as error:
        refuse(error)


def _train(config: TrainConfig, command: str) -> None:
    from vitreous.training.monitor import Interrupted
    from vitreous.training.run import train as run

    try:
        run(config, command)
    except Interrupted as stop:
        print(printable(f"vitreous: {stop}"), file=sys.stderr)
        sys.exit(128 + stop.signal_number)
