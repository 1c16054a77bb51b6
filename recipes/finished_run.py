"""Training as part of a longer experiment: a finished run is not repeated, and an interrupted one is resumed."""

import dataclasses
import json
import shlex
import sys
from typing import Any

from vitreous.training import TrainConfig


def finished(config: TrainConfig) -> dict[str, Any]:
    """Train or resume a run and return its metrics. A finished run with the same settings is not repeated."""
    import vitreous
    from vitreous.training.run_folder import folder_of, resumed_config

    folder = folder_of(config)
    if (folder / "config.json").exists():
        config = dataclasses.replace(config, resume=True)
        resumed_config(config)  # raises if the settings differ
    if (folder / "metrics.json").exists():
        return dict(json.loads((folder / "metrics.json").read_text()))
    print(f"\n== {folder}", flush=True)
    return vitreous.train(config, command=shlex.join(["python", *sys.argv])).metrics
