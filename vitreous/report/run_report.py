"""Report of a training run: plots as PNG files, and report.html, which contains everything.

The page has the same frame for every task; the task provides its own sections.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from jaxtyping import UInt8
from torch import Tensor

from vitreous.report import plots
from vitreous.report.html import Html, code, definitions, details, items, name, photos, plot, sections_page, tag
from vitreous.report.metric_text import label, value
from vitreous.report.style import can_draw, readable

MOST_UNREADABLE = 200


class Section(NamedTuple):
    """A heading and its content. A section without content is not shown."""

    title: str
    content: Sequence[Html]


@dataclass(frozen=True)
class TaskReport:
    """Results of a run in the words of its task."""

    summary: str  # one line for the terminal
    description: str  # the task, the number of classes, the evaluated split
    headline: Mapping[str, float | str]  # the main metrics, the most important first: {"top1": 0.977, ...}
    sections: Sequence[Section] = ()


@dataclass(frozen=True)
class RunReport:
    """Contents of a run's report."""

    title: str
    task: TaskReport
    commands: Sequence[str]  # the command that started the run, then those that resumed it
    facts: Mapping[str, str]  # model, parameters, data set, split, device, precision, time, images/s, seed, version
    history: Sequence[Mapping[str, Any]] = ()  # the rows of metrics.jsonl
    config: Mapping[str, Any] | None = None
    unreadable: Sequence[str] = ()
    automatic: Sequence[str] = ()  # "batch_size = 64 (1,000 images on cpu)"
    next_commands: Sequence[str] = ()


def write_report(folder: Path, report: RunReport) -> Path:
    """Draw the curves, write report.html and return its path. Without matplotlib the page has no plots."""
    folder.mkdir(parents=True, exist_ok=True)
    sections = [
        Section("Run", _run(report)),
        Section("Curves", _curves(folder, report.history)),
        *report.task.sections,
        Section("Automatic choices", _automatic(report.automatic)),
        Section("Unreadable files", _unreadable(report.unreadable)),
        Section("Configuration", _config(report.config)),
        Section("Next steps", [code(command) for command in report.next_commands]),
    ]
    metrics = ((label(key), value(key, number)) for key, number in report.task.headline.items())
    subtitle = tag("p", report.task.description, class_="soft")
    page = sections_page(report.title, sections, subtitle, definitions(metrics, "headline"))
    path = folder / "report.html"
    path.write_text(page, encoding="utf-8", errors="replace")  # a file's name may contain bytes that are not text
    return path


def samples_section(
    folder: Path,
    images: UInt8[Tensor, "k c h w"],
    labels: Sequence[str] = (),
    classes: Sequence[str] = (),
    draw: bool = True,
) -> Section:
    """Training images as the model sees them; `draw` writes them to samples.png too."""
    labels = labels or [""] * len(images)
    if draw:
        plots.grid(folder / "samples.png", list(images), [class_caption(text, classes) for text in labels])
    text = "Training images after cropping and augmentation. If you cannot recognise them, neither can the model."
    alts = [f"training image: {text}" for text in labels]
    return Section("Training images", [tag("p", text), photos(list(images), alts, [name(text) for text in labels])])


def figures_section(figures: Sequence[tuple[str, Path]]) -> Section:
    """Image files with their captions."""
    return Section("More figures", [plot(path, caption, caption) for caption, path in figures])


def class_caption(text: str, classes: Sequence[str]) -> str:
    """The name of a class in a plot; its number if no font has the letters."""
    return readable(text, f"class {classes.index(text)}" if text in classes else "", 18)


def _run(report: RunReport) -> list[Html]:
    first, *resumed = report.commands
    content = [definitions(report.facts.items(), "facts"), tag("p", "Command:", class_="soft"), code(first)]
    if resumed:
        content += [tag("p", f"Resumed {len(resumed)} times:" if len(resumed) > 1 else "Resumed once:", class_="soft")]
        content += [code("\n".join(resumed))]
    return content


def _curves(folder: Path, history: Sequence[Mapping[str, Any]]) -> list[Html]:
    if not history:
        return []
    if not can_draw():
        return [tag("p", "Plots need matplotlib: ", tag("code", "pip install vitreous[plot]"))]
    plots.curves(folder / "curves.png", history)
    best = plots.best_row(history)
    text = "Metrics on training images; the run was not evaluated on other images."
    if best is not None:
        keys = [key for key in ("val_top1", "val_miou", "val_loss") if plots.is_number(best.get(key))]
        metrics = ", ".join(f"{label(key)} {value(key, best[key])}" for key in keys)
        axes = (f"{key} {best[key]:,.4g}" for key in ("epoch", "step") if plots.is_number(best.get(key)))
        text = (
            "Grey: training images. Blue: validation images, which are not trained on. The best evaluation, marked by "
            f"a dot, was at {next(axes, 'the marked point')}: {metrics}."
        )
    return [plot(folder / "curves.png", "Loss, accuracy and learning rate over the run", text)]


def _automatic(choices: Sequence[str]) -> list[Html]:
    return [tag("p", "Settings that were not given, chosen for this data:"), items(choices)] if choices else []


def _unreadable(names: Sequence[str]) -> list[Html]:
    if not names:
        return []
    text = f"{len(names):,} file{'s' * (len(names) != 1)} could not be read, and no metric includes them."
    more = [tag("p", f"and {len(names) - MOST_UNREADABLE:,} more")] if len(names) > MOST_UNREADABLE else []
    return [tag("p", text), items(name(text) for text in names[:MOST_UNREADABLE]), *more]


def _config(config: Mapping[str, Any] | None) -> list[Html]:
    if config is None:
        return []
    return [details("All settings, as JSON", code(json.dumps(config, indent=2, default=str, ensure_ascii=False)))]
