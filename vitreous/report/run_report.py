"""The account of a run: its pictures as PNG files, and all of it in one HTML file to show to someone.

Every task uses the same report; what a task has not measured is left out.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from jaxtyping import UInt8
from torch import Tensor

from vitreous.report import classify_sections as sections
from vitreous.report import plots
from vitreous.report.html import (
    Html,
    code,
    definitions,
    details,
    document,
    inner,
    items,
    name,
    photos,
    plot,
    tag,
)
from vitreous.report.metric_text import label, value
from vitreous.report.segment_section import segment_classes
from vitreous.report.style import can_draw, readable
from vitreous.tasks.classification_metrics import Evaluation
from vitreous.tasks.segmentation_metrics import SegmentEvaluation

SAMPLES = 16  # that a run hands in
MOST_SAMPLES, MOST_MISTAKES, MOST_NAMES = 32, 24, 200


@dataclass(frozen=True)
class Mistake:
    """A picture that the model got wrong, as it saw it, and the probability that it gave its answer."""

    picture: UInt8[Tensor, "c h w"]
    name: str
    truth: str
    guess: str
    probability: float


@dataclass(frozen=True)
class RunReport:
    """What is told about a run. Everything that is left out is left out of the page too."""

    title: str
    task: str
    command: str
    headline: Mapping[str, float | str]  # the figures that count, the most important first: {"top1": 0.977, ...}
    facts: Mapping[str, str]  # model, parameters, data set, split, device, precision, time, images/s, seed, version
    history: Sequence[Mapping[str, Any]] = ()  # the rows of metrics.jsonl
    config: Mapping[str, Any] | None = None
    evaluation: Evaluation | None = None
    segments: SegmentEvaluation | None = None
    classes: Sequence[str] = ()
    samples: UInt8[Tensor, "k c h w"] | None = None  # training pictures as the model saw them
    sample_labels: Sequence[str] = ()
    mistakes: Sequence[Mistake] = ()
    unreadable: Sequence[str] = ()
    defaults_chosen: Sequence[str] = ()  # "batch size 64: ..."
    next_commands: Sequence[str] = ()
    extra_figures: Sequence[tuple[str, Path]] = ()  # caption and file, of what only one task has


class Account(NamedTuple):
    """A sentence for the terminal, and parts of the report that only this task has (see RunReport)."""

    sentence: str
    parts: dict[str, Any]


def write_report(folder: Path, report: RunReport) -> Path:
    """Draw the plots into the folder and write `report.html` beside them; its path is returned.

    Without matplotlib the page is written without plots.
    """
    folder.mkdir(parents=True, exist_ok=True)
    judged = report.evaluation
    if judged is not None:
        names = judged.names or tuple(report.classes) or None
        judged = replace(judged, names=names) if bool(judged.readable.any()) else None
    report = replace(report, evaluation=judged)
    drawn = _draw(folder, report) if can_draw() else {}
    contents = [
        ("What was trained, on what", _facts(report)),
        ("Curves", _curves(report, drawn)),
        ("Class by class", sections.per_class(judged) if judged else segment_classes(report.segments)),
        ("What is taken for what", sections.confusion(judged, drawn.get("confusion")) if judged else []),
        ("Worst mistakes", _mistakes(report)),
        ("Does it know what it knows?", sections.calibration(judged, drawn.get("calibration")) if judged else []),
        ("Pictures as the model saw them", _samples(report)),
        ("More figures", [plot(path, caption, caption) for caption, path in report.extra_figures]),
        ("Defaults that were chosen", _defaults(report)),
        ("Unreadable files", _unreadable(report)),
        ("Configuration", _config(report)),
        ("What to try next", [code(command) for command in report.next_commands]),
    ]
    told = [(heading, parts) for heading, parts in contents if parts]
    links = [tag("a", heading, href=f"#{_anchor(heading)}") for heading, _ in told]
    body = [tag("section", tag("h2", heading, id=_anchor(heading)), *parts) for heading, parts in told]
    headline = definitions(((label(key), value(key, number)) for key, number in report.headline.items()), "headline")
    header = tag("header", tag("h1", report.title), tag("p", report.task, class_="soft"), headline)
    page = document(report.title, header, tag("nav", *links), tag("main", *body))
    path = folder / "report.html"
    path.write_text(page, encoding="utf-8", errors="replace")  # a file's name may hold bytes that are no text
    return path


def _draw(folder: Path, report: RunReport) -> dict[str, Path]:
    """The PNG files that there is something to draw for."""
    drawn = {}
    if report.history:
        drawn["curves"] = folder / "curves.png"
        plots.curves(drawn["curves"], report.history)
    if report.evaluation is not None:
        drawn["calibration"] = folder / "calibration.png"
        plots.calibration(drawn["calibration"], report.evaluation.calibration())
        if report.evaluation.num_classes <= plots.MOST_CLASSES:
            drawn["confusion"] = folder / "confusion.png"
            plots.confusion(drawn["confusion"], report.evaluation)
        wrong = report.mistakes[:MOST_MISTAKES]
        captions = []
        for mistake in wrong:
            truth, guess = _plot_name(report, mistake.truth), _plot_name(report, mistake.guess)
            arrow = " → " if len(truth + guess) <= 10 else " →\n"
            captions.append(f"{truth}{arrow}{guess} ({mistake.probability:.0%})")
        plots.grid(folder / "mistakes.png", [mistake.picture for mistake in wrong], captions, columns=6, width=1.75)
    if report.samples is not None and len(report.samples):
        shown = report.samples[:MOST_SAMPLES]
        captions = [_plot_name(report, text) for text in report.sample_labels[: len(shown)]]
        plots.grid(folder / "samples.png", list(shown), captions)
    return drawn


def _plot_name(report: RunReport, text: str) -> str:
    """A class as a plot can show it; by its number where no font here has its letters."""
    return readable(text, f"class {report.classes.index(text)}" if text in report.classes else "", 18)


# ---- The sections, in their order. An empty one is left out. ---------------------------------------------------------


def _facts(report: RunReport) -> list[Html]:
    return [definitions(report.facts.items(), "facts"), tag("p", "The command:", class_="soft"), code(report.command)]


def _curves(report: RunReport, drawn: Mapping[str, Path]) -> list[Html]:
    if "curves" not in drawn:
        if not report.history or can_draw():
            return []
        return [tag("p", "The plots are missing because matplotlib is: ", tag("code", "pip install vitreous[plot]"))]
    best = plots.best_row(report.history)
    words = "Grey is measured on the pictures it learns from, blue on pictures it never learns from."
    if best is None:
        words = "Measured on the pictures it learns from; there was no evaluation on others."
    else:
        keys = [key for key in ("val_top1", "val_miou", "val_loss") if plots.is_number(best.get(key))]
        figures = ", ".join(f"{label(key)} {value(key, best[key])}" for key in keys)
        where = next(
            (f"{key} {best[key]:,.4g}" for key in ("epoch", "step") if plots.is_number(best.get(key))),
            "the marked point",
        )
        words += f" The best evaluation, marked by a dot, was at {where}: {figures}."
    return [plot(drawn["curves"], "Loss, quality and learning rate over the run", words)]


def _mistakes(report: RunReport) -> list[Html]:
    if not report.mistakes:
        return []
    words = "The mistakes that the model was surest of: often a wrong label, or a picture that is hard for anyone."
    wrong = report.mistakes[:MOST_MISTAKES]
    alts = [f"{mistake.name}: {mistake.truth}, taken for {mistake.guess}" for mistake in wrong]
    captions = [
        inner(
            tag("b", name(mistake.truth), " → ", name(mistake.guess)),
            f" ({mistake.probability:.0%})",
            tag("small", name(mistake.name), title=mistake.name),
        )
        for mistake in wrong
    ]
    if report.evaluation is not None:
        figures = report.evaluation.metrics()
        missed = round(figures["count"] * (1 - figures["top1"]))
        words = f"{missed:,} of {figures['count']:,} pictures were answered wrongly. " + words
    words += " Below each: the true class → the answer, and how sure it was."
    return [tag("p", words), photos([mistake.picture for mistake in wrong], alts, captions)]


def _samples(report: RunReport) -> list[Html]:
    if report.samples is None or not len(report.samples):
        return []
    labels = report.sample_labels[:MOST_SAMPLES]
    words = (
        "Training pictures after cropping and augmentation. If you cannot tell what they are, neither can the model."
    )
    alts = [f"training picture: {text}" for text in labels]
    return [tag("p", words), photos(list(report.samples[:MOST_SAMPLES]), alts, [name(text) for text in labels])]


def _defaults(report: RunReport) -> list[Html]:
    if not report.defaults_chosen:
        return []
    return [
        tag("p", "These were not given on the command line, and chosen for this data:"),
        items(report.defaults_chosen),
    ]


def _unreadable(report: RunReport) -> list[Html]:
    count = len(report.unreadable)
    if not count:
        return []
    files = "file" if count == 1 else "files"
    shown = items(name(text) for text in report.unreadable[:MOST_NAMES])
    more = [tag("p", f"and {count - MOST_NAMES:,} more")] if count > MOST_NAMES else []
    return [tag("p", f"{count:,} {files} could not be read and took no part in any figure."), shown, *more]


def _config(report: RunReport) -> list[Html]:
    if report.config is None:
        return []
    return [
        details(
            "The full configuration, as JSON",
            code(json.dumps(report.config, indent=2, default=str, ensure_ascii=False)),
        )
    ]


def _anchor(heading: str) -> str:
    return "".join(char if char.isalnum() else "-" for char in heading.lower()).strip("-")
