"""Writes the plots and tables of docs/*/results.md from the results of studies, and lists stale ones: `make results`.

A page marks the place of a table with `<!-- results: STUDY -->` and `<!-- end -->`; the text between them is generated.
"""
# ruff: noqa: RUF001 (Chinese punctuation)

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from rich.table import Table

from recipes.studies import STUDIES
from recipes.studies.records import RESULTS, Record, path_of, read, status
from recipes.studies.study import SCALES, Scale, Study
from vitreous.common.atomic_files import atomic_file
from vitreous.common.text import console
from vitreous.report.plots import ACCENT, GREY, drawing, percent, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DOCS = RESULTS.parent
PUBLISHED = [scale for scale in SCALES.values() if scale.name != "tiny"]
COLOURS = (ACCENT, "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", GREY)  # distinct for the colour-blind
MARKERS = "os^Dv<P"
BLOCK = re.compile(r"(<!-- results: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
TEXTS = {
    "en": {
        "measured": "Scale `{scale}`: [{runs} runs]({file}) with {seeds} seeds, mean ± standard deviation; "
        "{minutes:.0f} minutes on {machine}.",
        "not measured": "Scale `{scale}` ({machine}): not measured yet.",
        "columns": "| Study | Paper | {scales} |",
        "runs": "{runs} runs",
        "missing": "not measured",
    },
    "zh": {
        "measured": "规模 `{scale}`：[{runs} 次运行]({file})，{seeds} 个随机种子，均值 ± 标准差；"
        "{machine} 上用时 {minutes:.0f} 分钟。",
        "not measured": "规模 `{scale}`（{machine}）：尚未测量。",
        "columns": "| 研究 | 论文 | {scales} |",
        "runs": "{runs} 次运行",
        "missing": "尚未测量",
    },
}

Curves = Mapping[str, Mapping[float | str, Sequence[float]]]


def curves_of(records: Sequence[Record]) -> Curves:
    """Return the values of all seeds by curve and x, in the order of the runs; numbers on the x axis are sorted."""
    curves: dict[str, dict[float | str, list[float]]] = {}
    for point in (point for record in records for point in record.points):
        curves.setdefault(point.curve, {}).setdefault(point.x, []).append(point.value)
    return {
        name: dict(sorted(values.items(), key=lambda item: 0.0 if isinstance(item[0], str) else item[0]))
        for name, values in curves.items()
    }


def spread(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0


# ---- Plots -----------------------------------------------------------------------------------------------------------


def draw(path: Path, study: Study, curves: Curves) -> None:
    """Plot the mean and the standard deviation of each curve, or of each category."""
    places = list(dict.fromkeys(x for values in curves.values() for x in values))
    named = isinstance(places[0], str)
    with drawing(path, 6.4 if len(curves) <= 3 else 7.6, 3.6) as figure:
        axes = figure.add_subplot()
        plain(axes, x=study.x, y=study.y)
        for number, (name, values) in enumerate(curves.items()):
            offset = 0.16 * (number - (len(curves) - 1) / 2)
            x = [places.index(at) + offset if named else float(at) for at in values]
            axes.errorbar(
                x,
                [fmean(value) for value in values.values()],
                [spread(value) for value in values.values()],
                label=name,
                color=COLOURS[number % len(COLOURS)],
                marker=MARKERS[number % len(MARKERS)],
                markersize=4.5,
                linewidth=0 if named else 1.4,
                elinewidth=1.2,
                capsize=2.5,
            )
        if study.percent:
            percent(axes, "y")
        label_ticks(axes, study, places)
        if len(curves) > 1:
            figure.legend(loc="outside right upper", frameon=False, fontsize=9)


def label_ticks(axes: "Axes", study: Study, places: list[float | str]) -> None:
    """Label the x axis with categories, or with the measured numbers if there are few."""
    if isinstance(places[0], str):
        axes.set_xticks(
            range(len(places)), [str(place) for place in places], rotation=20, ha="right", rotation_mode="anchor"
        )
        return
    from matplotlib.ticker import LogLocator

    if study.log_x:
        axes.set_xscale("log")
    if len(places) <= 6:
        axes.set_xticks([float(place) for place in places], [number(place) for place in places])
    elif study.log_x:
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")  # the default uses mathematical text
    axes.minorticks_off()


# ---- Tables ----------------------------------------------------------------------------------------------------------


def number(x: float | str) -> str:
    """Format a number of the x axis.

    >>> number(50000), number(0.004), number(7.25), number("none")
    ('50,000', '0.004', '7.25', 'none')
    """
    return x if isinstance(x, str) else f"{x:,.0f}" if x >= 1000 else f"{x:g}"


def table(study: Study, curves: Curves) -> list[str]:
    """Return a Markdown table with a row per curve or category, or per point if the curves have different x."""
    places = list(dict.fromkeys(x for values in curves.values() for x in values))
    if all(len(values) < len(places) for values in curves.values()):
        heading = [f"| | {study.x} | {study.y} |", "|---|---:|---:|"]
        points = [(name, x, values) for name, row in curves.items() for x, values in row.items()]
        return heading + [f"| {name} | {number(x)} | {cell(study, values)} |" for name, x, values in points]
    rows = [[name, *(cell(study, values[x]) if x in values else "" for x in places)] for name, values in curves.items()]
    lines = [[study.x, *map(number, places)], *rows]
    if isinstance(places[0], str):
        lines = [list(line) for line in zip(*lines, strict=True)]
    lines.insert(1, ["---", *["---:"] * (len(lines[0]) - 1)])
    return [f"| {' | '.join(line)} |" for line in lines]


def cell(study: Study, values: Sequence[float]) -> str:
    """Format the mean and the standard deviation, in percent for accuracies."""
    factor = 100 if study.percent else 1
    return f"{factor * fmean(values):.1f}" + (f" ± {factor * spread(values):.1f}" if len(values) > 1 else "")


# ---- Pages -----------------------------------------------------------------------------------------------------------


def block(name: str, results: Path, language: str) -> str:
    """Return the generated part of a page: the plots and tables of a study, or the overview of all studies."""
    if name == "overview":
        return overview(results, language)
    study, texts = STUDIES[name], TEXTS[language]
    parts = []
    for scale in PUBLISHED:
        records = read(path_of(results, study, scale))
        command = f"`python -m recipes.studies {name} --scale {scale.name}`"
        if not records:
            missing = texts["not measured"].format(scale=scale.name, machine=scale.machine)
            parts.append(f"{missing} {command}")
            continue
        about = texts["measured"].format(
            scale=scale.name,
            file=f"../results/{scale.name}/{name}.json",
            runs=len(records),
            seeds=len({record.seed for record in records}),
            minutes=max(sum(record.seconds / record.jobs for record in records) / 60, 1),
            machine=", ".join(dict.fromkeys(record.machine for record in records)),
        )
        figure = f"![{study.x} → {study.y}](../results/{scale.name}/{name}.png)"
        parts.append("\n".join([figure, "", *table(study, curves_of(records)), "", f"{about} {command}"]))
    return "\n\n".join(parts)


def overview(results: Path, language: str) -> str:
    """Return a table of all studies and the number of runs that were measured at each scale."""
    texts = TEXTS[language]
    lines = [texts["columns"].format(scales=" | ".join(f"`{scale.name}`" for scale in PUBLISHED))]
    lines.append("|---" * (2 + len(PUBLISHED)) + "|")
    for name, study in STUDIES.items():
        counts = [len(read(path_of(results, study, scale))) for scale in PUBLISHED]
        cells = [texts["runs"].format(runs=count) if count else texts["missing"] for count in counts]
        lines.append(f"| [`{name}`](../../recipes/studies/{name}.py) | {study.paper} | {' | '.join(cells)} |")
    return "\n".join(lines)


def filled(page: str, results: Path, language: str) -> str:
    """Return a page with its generated parts."""
    return BLOCK.sub(lambda match: f"{match[1]}\n{block(match[2], results, language)}\n\n{match[3]}", page)


def draw_plots(results: Path, studies: Iterable[Study], scale: Scale) -> None:
    """Draw the plots of all studies with results, beside the results."""
    for study in studies:
        path = path_of(results, study, scale)
        if records := read(path):
            draw(path.with_suffix(".png"), study, curves_of(records))


def publish(results: Path, docs: Path) -> None:
    """Draw all plots and update the pages."""
    for scale in PUBLISHED:
        draw_plots(results, STUDIES.values(), scale)
    for language in TEXTS:
        page = docs / language / "results.md"
        text = page.read_text(encoding="utf-8")
        with atomic_file(page) as aside:
            aside.write_text(filled(text, results, language), encoding="utf-8")


def statuses(studies: Sequence[Study], scales: Sequence[Scale], results: Path) -> Table:
    """Return a table of measured, stale and missing studies."""
    shown = Table("study", *(scale.name for scale in scales), box=None)
    for study in studies:
        shown.add_row(study.name, *(status(study, scale, results) for scale in scales))
    return shown


if __name__ == "__main__":
    publish(RESULTS, DOCS)
    console().print(statuses(list(STUDIES.values()), PUBLISHED, RESULTS))
