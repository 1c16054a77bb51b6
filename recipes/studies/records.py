"""Results of studies as JSON, one file per study and scale, and which of them are stale."""

import ast
import dataclasses
import hashlib
import inspect
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from recipes.studies.flops import model_config
from recipes.studies.study import TEST_FRACTION, Point, Run, Scale, Stage, Study, balanced, write_images
from vitreous.common.atomic_files import atomic_file
from vitreous.common.codec import to_dict

RESULTS = Path(__file__).parents[2] / "docs" / "results"
Label = tuple[str, float | str, int]


@dataclass(frozen=True)
class Record:
    """Result of a run."""

    curve: str
    x: float | str
    seed: int
    points: list[Point]
    fingerprint: str
    seconds: float  # of all stages, some of which other runs may share, on a machine shared by `jobs` runs
    jobs: int
    tflops: float  # computed from the models, not measured
    machine: str
    torch: str
    stages: list[dict[str, Any]]  # settings that differ from the defaults of TrainConfig

    @property
    def label(self) -> Label:
        return self.curve, self.x, self.seed


def path_of(results: Path, study: Study, scale: Scale) -> Path:
    return results / scale.name / f"{study.name}.json"


def read(path: Path) -> list[Record]:
    """Read the results of a study. Return an empty list if there are none."""
    if not path.exists():
        return []
    records = [Record(**row) for row in json.loads(path.read_text())["records"]]
    return [dataclasses.replace(row, points=[Point(*point) for point in row.points]) for row in records]


def write(path: Path, study: Study, scale: Scale, records: Iterable[Record]) -> None:
    """Write results, one line per run."""
    lines = ",\n".join(json.dumps(asdict(record)) for record in records)
    heading = f'"study": "{study.name}", "scale": "{scale.name}"'
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as aside:
        aside.write_text(f'{{{heading}, "records": [\n{lines}\n]}}\n')


def add(results: Path, study: Study, scale: Scale, record: Record) -> None:
    """Add a result to the file of a study. It replaces an older result of the same run. The order is that of the runs.

    Results of runs that are no longer part of the study are dropped.
    """
    path = path_of(results, study, scale)
    known = {one.label: one for one in [*read(path), record]}
    labels = [run.label for run in study.runs(scale)]
    write(path, study, scale, [known[label] for label in labels if label in known])


# ---- Fingerprints ----------------------------------------------------------------------------------------------------


def settings(stage: Stage, first: bool) -> dict[str, Any]:
    """Return the settings of a stage that differ from the defaults, and the config of its model."""
    model = {"model_config": changed(model_config(stage.config))} if first else {}
    return {"images": stage.images, **changed(stage.config), **model}


def changed(config: Any) -> dict[str, Any]:
    """Return the fields of a config that differ from their defaults, as JSON types."""
    default, fields = type(config)(), to_dict(config)
    names = [field.name for field in dataclasses.fields(config)]
    return {
        name: changed(getattr(config, name)) if nested(config, default, name) else fields[name]
        for name in names
        if getattr(config, name) != getattr(default, name)
    }


def nested(config: Any, default: Any, name: str) -> bool:
    """Return True if a field holds options of one type, which always has defaults."""
    value = getattr(config, name)
    return dataclasses.is_dataclass(value) and type(value) is type(getattr(default, name))


def stage_keys(run: Run, scale: Scale) -> tuple[str, ...]:
    """Return a key for each stage of a run. It depends on the settings, on the data and on all stages before it."""
    described = [settings(stage, first=i == 0) for i, stage in enumerate(run.stages)]
    return tuple(digest([origin_of(scale), described[: i + 1]]) for i in range(len(described)))


def origin_of(scale: Scale) -> list[Any]:
    """Return the data of a scale and the code that draws images from it."""
    return [scale.data, TEST_FRACTION, code_of(write_images), code_of(balanced)]


def fingerprint(study: Study, run: Run, scale: Scale) -> str:
    """Return a key for the result of a run, which also depends on the measurement."""
    return digest([stage_keys(run, scale)[-1], code_of(study.measure)])


def code_of(function: Callable[..., Any]) -> str:
    """Return the code of a function without comments and docstring."""
    (node,) = ast.parse(inspect.getsource(function)).body
    assert isinstance(node, ast.FunctionDef)
    return "\n".join(map(ast.unparse, node.body[ast.get_docstring(node) is not None :]))


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def missing(study: Study, scale: Scale, results: Path) -> list[Run]:
    """Return the runs of a study without a result, or with a stale one."""
    known = {record.label: record.fingerprint for record in read(path_of(results, study, scale))}
    return [run for run in study.runs(scale) if known.get(run.label) != fingerprint(study, run, scale)]


def status(study: Study, scale: Scale, results: Path) -> str:
    """Return "measured", "not measured", or the number of runs that are stale or missing."""
    known = {record.label for record in read(path_of(results, study, scale))}
    if not known:
        return "not measured"
    todo = [run.label in known for run in missing(study, scale, results)]
    counts = {"stale": sum(todo), "missing": len(todo) - sum(todo)}
    return ", ".join(f"{count} runs {word}" for word, count in counts.items() if count) or "measured"
