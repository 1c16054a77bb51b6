"""Measures the paper's claims again at a small scale: `python -m recipes.studies [STUDY ...] --scale h200`.

Repeat the command until it prints that nothing is missing: finished runs are not repeated. `--plan` only lists the
runs. Results are in docs/results; `make results` writes the tables of docs/en/results.md.
"""

import functools
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro
from rich.table import Table

from recipes.studies import STUDIES
from recipes.studies.publish import draw_plots
from recipes.studies.records import RESULTS, add
from recipes.studies.run_studies import Place, Planned, Session, measure_run, plan, workers
from recipes.studies.study import SCALES
from vitreous.common.text import console, duration
from vitreous.report.plots import can_draw


@dataclass(frozen=True)
class Options:
    """Options of the studies."""

    studies: tyro.conf.Positional[tuple[str, ...]] = ()
    """Studies to run; all by default."""
    scale: Literal["digits", "h200", "tiny"] = "digits"
    """digits: minutes on a CPU; h200: CIFAR-10 on a GPU; tiny: seconds, only to test the code."""
    data_root: Path | None = None
    """Folder with cifar10.npz, which is downloaded by default."""
    seconds: float | None = None
    """Time limit: no run starts that would probably not finish."""
    jobs: int = 1
    """Number of processes that share the device."""
    device: str = "auto"
    work: Path = Path("runs/studies")
    """Folder for the runs."""
    results: Path = RESULTS
    """Folder for the results, which also contains those of earlier sessions."""
    plan: bool = False
    """List the missing runs and their estimated duration, then exit."""


def main(options: Options) -> int:
    started, scale = time.monotonic(), SCALES[options.scale]
    if unknown := [name for name in options.studies if name not in STUDIES]:
        raise ValueError(f"unknown study {unknown[0]!r}; expected {', '.join(STUDIES)}")
    studies = [STUDIES[name] for name in options.studies or STUDIES]
    todo = plan(studies, scale, options.results)
    place = Place(options.work / scale.name, options.data_root, options.device, options.jobs)
    print_plan(todo, place)
    if options.plan or not todo:
        return 0
    with workers(options.jobs) as executor:
        session = Session(
            execute=functools.partial(measure_run, place),
            store=lambda planned, record: add(options.results, planned.study, scale, record),
            trained=place.trained,
            executor=executor,
            jobs=options.jobs,
            limit=None if options.seconds is None else options.seconds - (time.monotonic() - started),
            report=functools.partial(print, flush=True),
        )
        left = session.run(todo)
    if can_draw():
        draw_plots(options.results, studies, scale)
    print(f"{len(left)} of {len(todo)} runs are missing; repeat the command" if left else "nothing is missing")
    return 1 if left else 0


def print_plan(todo: list[Planned], place: Place) -> None:
    """Print the number of missing runs of each study, with their operations and estimated duration."""
    table = Table("study", "runs", "PFLOP", "estimated", box=None)
    known: set[str] = set()
    total = 0.0
    for name in dict.fromkeys(planned.study.name for planned in todo):
        group = [planned for planned in todo if planned.study.name == name]
        seconds = flops = 0.0
        for planned in group:
            fresh = [key not in known and not place.trained(key) for key in planned.keys]
            flops += sum(flops for flops, new in zip(planned.flops, fresh, strict=True) if new)
            seconds += planned.seconds(lambda key: key in known or place.trained(key))
            known.update(planned.keys)
        table.add_row(name, str(len(group)), f"{flops / 1e15:.3g}", duration(seconds))
        total += seconds
    table.add_row("all", str(len(todo)), "", duration(total))
    console().print(table)


if __name__ == "__main__":
    from vitreous.cli.main import exit_with_error

    try:
        sys.exit(main(tyro.cli(Options, description=__doc__)))
    except KeyboardInterrupt:
        sys.exit(130)
    except (ValueError, OSError) as error:
        exit_with_error(error)
