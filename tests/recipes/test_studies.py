"""Studies of the paper's claims: sessions, results, plots, and pages."""

import dataclasses
import itertools
import json
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from recipes.studies import STUDIES
from recipes.studies import records as records_module
from recipes.studies import study as study_module
from recipes.studies.__main__ import Options, main
from recipes.studies.flops import image_flops, model_config, stage_flops
from recipes.studies.masked import AVERAGE
from recipes.studies.publish import DOCS, curves_of, draw, filled, label_ticks, table
from recipes.studies.records import RESULTS, Record, add, fingerprint, path_of, read, status
from recipes.studies.run_studies import InThisProcess, Place, Planned, Session, images_of, measure_run, plan
from recipes.studies.study import (
    DIGITS,
    H200,
    TINY,
    Point,
    Run,
    Scale,
    Stage,
    Study,
    Trained,
    balanced,
    measure_top1,
    write_images,
)
from vitreous.model.config import ViTConfig
from vitreous.training import Masking


def toy_runs(scale: Scale) -> list[Run]:
    """Return runs of two curves that start with the same stage for each seed."""
    return [
        Run(curve, x, seed, (Stage(scale.config(seed), 200), Stage(scale.config(seed + 10, depth=x), 200)))
        for seed in (0, 1)
        for curve in ("a", "b")
        for x in (1, 2)
    ]


TOY = Study("toy", "", toy_runs, x="x")


def record_of(planned: Planned, value: float = 0.5) -> Record:
    run = planned.run
    points = [Point(run.curve, run.x, value)]
    return Record(run.curve, run.x, run.seed, points, planned.fingerprint, 1.0, 1, 0.1, "CPU", "2.11", [])


@pytest.fixture(scope="module")
def todo(tmp_path_factory: pytest.TempPathFactory) -> list[Planned]:
    return plan([TOY], TINY, tmp_path_factory.mktemp("empty"))


class Machine:
    """Executes runs on a simulated clock, on which they take `slowness` times their estimated duration."""

    def __init__(self, slowness: float = 1.0, failing: Sequence[Planned] = ()):
        self.failing = failing
        self.now, self.slowness, self.lines = 0.0, slowness, list[str]()
        self.finished: list[Planned] = []
        self.stages: set[str] = set()

    def execute(self, planned: Planned, seconds: float | None) -> Record | None:
        if planned in self.failing:
            raise RuntimeError("out of memory")
        self.now += self.slowness * planned.seconds(self.stages.__contains__)
        self.stages |= set(planned.keys)
        return record_of(planned)

    def session(self, limit: float | None) -> Session:
        return Session(
            execute=self.execute,
            store=lambda planned, record: self.finished.append(planned),
            trained=self.stages.__contains__,
            executor=InThisProcess(),
            limit=limit,
            clock=lambda: self.now,
            report=self.lines.append,
        )


# ---- Sessions --------------------------------------------------------------------------------------------------------


def test_runs_of_the_first_seed_come_first(todo: list[Planned]) -> None:
    assert [planned.run.seed for planned in todo] == sorted(run.seed for run in toy_runs(TINY))


def test_a_session_ends_before_its_time_limit_and_the_next_one_continues(todo: list[Planned]) -> None:
    machine = Machine()
    whole = sum(planned.seconds(machine.stages.__contains__) for planned in todo)
    left = machine.session(whole / 3).run(todo)
    assert 0 < machine.now <= whole / 3
    assert 0 < len(left) < len(todo)
    assert machine.session(None).run(left) == []
    assert Counter(one.name for one in machine.finished) == Counter(one.name for one in todo)


def test_no_run_starts_that_would_take_too_long_on_a_slow_machine(todo: list[Planned]) -> None:
    """The first run is started because of its estimate. Its duration corrects those of the other runs."""
    machine = Machine(slowness=3.0)
    longest = todo[0].seconds(machine.stages.__contains__)
    machine.session(5 * longest).run(todo)
    assert 3 * longest < machine.now <= 5 * longest


def test_a_shorter_run_uses_the_rest_of_the_time(todo: list[Planned]) -> None:
    machine = Machine()
    long = dataclasses.replace(todo[0], flops=(1e15, 1e15))
    assert machine.session(60.0).run([long, todo[-1]]) == [long]
    assert machine.finished == [todo[-1]]


def test_a_failed_run_does_not_stop_the_others(todo: list[Planned]) -> None:
    machine = Machine(failing=[todo[1]])
    assert machine.session(None).run(todo) == [todo[1]]
    assert any("out of memory" in line for line in machine.lines)


def test_a_session_stops_if_every_run_fails(todo: list[Planned]) -> None:
    machine = Machine(failing=todo)
    assert len(machine.session(None).run(todo)) == len(todo)
    assert len(machine.lines) == 3


def test_an_interruption_stops_the_session(todo: list[Planned]) -> None:
    machine = Machine()
    machine.execute = lambda planned, seconds: None  # type: ignore[method-assign]
    assert machine.session(None).run(todo) == todo
    assert len(machine.lines) == 1


def test_parallel_runs_never_train_the_same_stage_at_once(todo: list[Planned]) -> None:
    change, training, trained, most = threading.Condition(), Counter[str](), set[str](), 0

    def execute(planned: Planned, seconds: float | None) -> Record:
        nonlocal most
        with change:
            fresh = set(planned.keys) - trained
            training.update(fresh)
            most = max(most, sum(training.values()))
            assert max(training.values(), default=0) <= 1
            change.notify_all()
            if len(fresh) < len(planned.keys):  # after a common stage: both curves, or a curve and another seed
                change.wait_for(lambda: most > 2, timeout=60)
            training.subtract(fresh)
            trained.update(planned.keys)
        return record_of(planned)

    stored: list[Record] = []
    with ThreadPoolExecutor(4) as executor:
        session = Session(execute, lambda planned, record: stored.append(record), trained.__contains__, executor, 4)
        assert session.run(todo) == []
    assert len(stored) == len(todo)
    assert most > 2


# ---- Results ---------------------------------------------------------------------------------------------------------


def test_finished_runs_are_not_planned_again(todo: list[Planned], tmp_path: Path) -> None:
    for planned in reversed(todo):
        add(tmp_path, TOY, TINY, record_of(planned))
        add(tmp_path, TOY, TINY, record_of(planned, 0.75))  # replaces the first one
    records = read(path_of(tmp_path, TOY, TINY))
    assert [record.label for record in records] == [run.label for run in toy_runs(TINY)]
    assert {point.value for record in records for point in record.points} == {0.75}
    assert plan([TOY], TINY, tmp_path) == []
    assert status(TOY, TINY, tmp_path) == "measured"


def test_stale_and_missing_runs_are_counted(todo: list[Planned], tmp_path: Path) -> None:
    assert status(TOY, TINY, tmp_path) == "not measured"
    for planned in todo[:3]:
        add(tmp_path, TOY, TINY, record_of(planned))
    changed = dataclasses.replace(TINY, width=64)  # results of another model with the same labels
    assert status(TOY, TINY, tmp_path) == "5 runs missing"
    assert status(TOY, changed, tmp_path) == "3 runs stale, 5 runs missing"
    assert len(plan([TOY], changed, tmp_path)) == len(todo)


def measure_loss(trained: Trained) -> list[Point]:
    return [Point("", "", trained.metrics["loss"])]


def test_a_result_depends_on_settings_data_and_measurement() -> None:
    run = toy_runs(TINY)[0]
    first, second = run.stages

    def with_stages(*stages: Stage) -> Run:
        return dataclasses.replace(run, stages=stages)

    def with_config(stage: Stage, **fields: object) -> Stage:
        return dataclasses.replace(stage, config=dataclasses.replace(stage.config, **fields))

    keys = [
        fingerprint(TOY, run, TINY),
        fingerprint(dataclasses.replace(TOY, measure=measure_loss), run, TINY),
        fingerprint(TOY, run, dataclasses.replace(TINY, data="cifar10")),
        fingerprint(TOY, with_stages(second), TINY),
        fingerprint(TOY, with_stages(with_config(first, steps=5), second), TINY),
        fingerprint(TOY, with_stages(first, dataclasses.replace(second, images=100)), TINY),
        fingerprint(TOY, with_stages(first, with_config(second, seed=5)), TINY),
        fingerprint(TOY, with_stages(first, with_config(second, overrides={"registers": 1})), TINY),
    ]
    assert len(set(keys)) == len(keys)
    assert fingerprint(TOY, dataclasses.replace(run, curve="renamed"), TINY) == keys[0]
    assert measure_top1 is TOY.measure


# ---- Data and compute ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [10, 25, 100])
def test_images_are_drawn_in_turn_from_each_class(count: int) -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 20))
    chosen = balanced(labels, count, seed=3)
    sizes = np.bincount(labels[chosen], minlength=10)
    assert len(set(chosen.tolist())) == count
    assert sizes.max() - sizes.min() <= 1
    assert not np.array_equal(chosen, balanced(labels, count, seed=4))


def test_all_runs_share_the_test_images(tmp_path: Path) -> None:
    for count, seed in ((40, 0), (40, 1)):
        write_images(TINY, None, count, seed, tmp_path / f"{seed}.npz")
    first, second = (np.load(tmp_path / f"{seed}.npz") for seed in (0, 1))
    assert np.array_equal(first["x_test"], second["x_test"])
    assert not np.array_equal(first["x_train"], second["x_train"])
    assert len(first["y_train"]) == 40
    with pytest.raises(ValueError, match="896"):
        write_images(TINY, None, 5_000, 0, tmp_path / "many.npz")


def test_images_are_written_again_if_their_choice_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(tmp_path, None, "cpu", 1)
    first = images_of(TINY, place, 40, 0)
    assert images_of(TINY, place, 40, 0) == first
    for module in (records_module, study_module):
        monkeypatch.setattr(module, "balanced", first_images)
    second = images_of(TINY, place, 40, 0)
    assert not np.array_equal(np.load(first)["x_train"], np.load(second)["x_train"])


def first_images(labels: np.ndarray, count: int, seed: int) -> np.ndarray:
    return np.arange(count)


LONG = dataclasses.replace(TINY, steps=2_000)


@pytest.mark.parametrize("name", STUDIES)
def test_runs_of_a_study_are_distinct(name: str) -> None:
    runs = STUDIES[name].runs(dataclasses.replace(TINY, seeds=2))
    assert len({run.label for run in runs}) == len(runs)
    assert {run.seed for run in runs} == {0, 1}
    assert all(stage.config.seed == run.seed for run in runs for stage in run.stages)


@pytest.mark.parametrize("name", ["masked", "training_set_size"])
def test_runs_have_equal_compute(name: str) -> None:
    totals = [sum(stage_flops(run.stages)) for run in STUDIES[name].runs(LONG)]
    assert max(totals) < 1.002 * min(totals)


def test_masked_pre_training_has_its_own_cost() -> None:
    """MAE encodes a quarter of the patches. Masked patch prediction adds a layer with 512 outputs per patch."""
    model = model_config(dataclasses.replace(H200.config(0, **AVERAGE), task="mpp"))
    assert isinstance(model, ViTConfig)
    whole, mae, mpp = (image_flops(task, Masking(), model) for task in ("classify", "mae", "mpp"))
    assert mpp - whole == 2 * 64 * 192 * 512
    assert 0.25 * whole < mae < 0.7 * whole


def test_training_from_scratch_costs_as_much_as_pre_training_and_fine_tuning() -> None:
    runs = {(run.curve, run.x): sum(stage_flops(run.stages)) for run in STUDIES["resolution"].runs(LONG)}
    sizes = [x for curve, x in runs if curve == "fine-tuned"]
    assert len(sizes) == 2
    for size in sizes:
        assert runs["from scratch", size] == pytest.approx(runs["fine-tuned", size], rel=2e-3)


# ---- Plots and pages -------------------------------------------------------------------------------------------------


def records(points: Iterable[tuple[str, float | str, float]]) -> list[Record]:
    return [Record("", "", 0, [Point(*point)], "", 1.0, 1, 0.1, "CPU", "2.11", []) for point in points]


def test_tables_show_means_and_standard_deviations() -> None:
    curves = curves_of(records([("a", 20, 0.5), ("a", 20, 0.7), ("a", 5, 0.25), ("b", 5, 0.125)]))
    assert table(STUDIES["masked"], curves)[2:] == ["| a | 25.0 | 60.0 ± 14.1 |", "| b | 12.5 |  |"]
    named = curves_of(records([("a", "none", 0.5), ("a", "1-D", 0.7), ("b", "none", 0.25), ("b", "1-D", 0.5)]))
    assert table(STUDIES["positions"], named)[2:] == ["| none | 50.0 | 25.0 |", "| 1-D | 70.0 | 50.0 |"]
    apart = curves_of(records([("a", 20, 0.5), ("a", 30, 0.5), ("b", 5, 0.1)]))
    assert table(STUDIES["hybrids"], apart)[2:] == ["| a | 20 | 50.0 |", "| a | 30 | 50.0 |", "| b | 5 | 10.0 |"]


@pytest.mark.parametrize("name", ["positions", "pooling", "attention_distance"])
def test_plots_have_categories_and_numbers(name: str, tmp_path: Path) -> None:
    """Matplotlib's own font is enough, and a warning is an error."""
    places = ("none", "1-D") if name == "positions" else (1, 10, 100)
    values = itertools.product(("a", "b", "c", "d"), places, range(3))
    points = [(curve, x, 0.1 * seed) for curve, x, seed in values]
    draw(tmp_path / "plot.png", STUDIES[name], curves_of(records(points)))
    with Image.open(tmp_path / "plot.png") as image:
        assert len(np.unique(np.asarray(image.convert("RGB")).reshape(-1, 3), axis=0)) > 10


@pytest.mark.parametrize("places", [(0.046, 0.08, 0.16), (0.046, 0.08, 0.12, 0.13, 0.16, 0.21, 0.31, 0.36)])
def test_ticks_of_a_logarithmic_axis_are_plain_numbers(places: tuple[float, ...]) -> None:
    axes = Figure().add_subplot()
    axes.plot(places, places)
    label_ticks(axes, STUDIES["hybrids"], list(places))
    low, high = axes.get_xlim()
    shown = [label.get_text() for tick, label in zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)
             if low <= tick <= high]  # fmt: skip
    assert len(shown) >= 3
    assert all(low <= float(text) <= high for text in shown)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_pages_agree_with_the_results(language: str) -> None:
    page = (DOCS / language / "results.md").read_text(encoding="utf-8")
    assert filled(page, RESULTS, language) == page, "run `make results`"
    assert all(f"<!-- results: {name} -->" in page for name in STUDIES)


# ---- Real runs -------------------------------------------------------------------------------------------------------


def first_run(name: str, curve: str, scale: Scale, results: Path) -> Planned:
    return next(planned for planned in plan([STUDIES[name]], scale, results) if planned.run.curve == curve)


@pytest.mark.slow
def test_a_run_out_of_time_is_resumed(tmp_path: Path) -> None:
    scale = dataclasses.replace(TINY, steps=300)
    planned = first_run("masked", "MAE", scale, tmp_path)
    place = Place(tmp_path, None, "cpu", 1)
    assert measure_run(place, planned, seconds=0.5) is None
    assert not place.trained(planned.keys[-1])
    record = measure_run(place, planned, seconds=None)
    assert record is not None
    assert place.trained(planned.keys[0])
    stages = [json.loads((place.folder(key) / "metrics.json").read_text()) for key in planned.keys]
    assert record.seconds == pytest.approx(sum(stage["seconds"] for stage in stages), abs=0.01)
    assert len(stages) == 2
    assert record.points[0].curve == "MAE"
    assert record.points[0].value > 0.15


@pytest.mark.slow
def test_two_processes_measure_a_study(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options = Options(("attention_distance",), "tiny", work=tmp_path / "work", results=tmp_path / "results", jobs=2)
    assert main(options) == 0
    file = tmp_path / "results" / "tiny" / "attention_distance.json"
    assert file.with_suffix(".png").exists()
    points = [point for record in read(file) for point in record.points]
    assert {point.x for point in points} == {1, 2}
    assert all(0 < point.value < 8 for point in points)
    assert main(dataclasses.replace(options, plan=True)) == 0
    assert "attention" not in capfd.readouterr().out.splitlines()[-1]


def test_unknown_studies_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'position'.*positions"):
        main(Options(("position",), results=tmp_path))
    assert DIGITS.seeds == 3
