"""`vitreous eval` of a classifier, with the same reading and the same figures as in training."""

import time
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from vitreous.common.text import plural
from vitreous.data.loader import BatchSlice, EvalLoader, Reader
from vitreous.evaluation.print_metrics import summary_table, tell
from vitreous.evaluation.setting import USUAL, Setting
from vitreous.inference.device import choose_device, choose_dtype
from vitreous.model.resnet import ResNet
from vitreous.model.vit import ViT
from vitreous.tasks.classify_loop import Answers, answer

SHOWN = 12


def evaluate_classifier(model: ViT | ResNet, data: str, setting: Setting = USUAL) -> tuple[dict[str, Any], Answers]:
    """The figures of `metrics.json`, and all answers."""
    if not model.config.num_classes:
        raise ValueError(
            "the checkpoint has no head, so it knows no classes: measure its features with --probe knn, linear or "
            "fewshot"
        )
    found, name, source = setting.open(data)
    if model.config.num_classes != len(found.classes) or model.config.labels not in ((), found.classes):
        ours, theirs = model.config.labels or f"{model.config.num_classes} unnamed", found.classes
        raise ValueError(f"the checkpoint knows the classes {_few(ours)}, but {found.name} has {_few(theirs)}")
    where = choose_device(setting.device, torch.device("cpu"))
    model = model.to(where)
    config = model.config
    reader = Reader(source, config.image_size, config.channels, config.preprocessing, exact_from=setting.exact_from)
    started = time.perf_counter()
    answers = Answers.join(
        [
            answer(
                model,
                EvalLoader(reader, BatchSlice(setting.batch_size), setting.workers),
                where,
                config.preprocessing,
                found.classes,
                choose_dtype(setting.precision, where),
                setting.flip,
            )
        ]
    )
    seconds = time.perf_counter() - started
    figures = {**answers.evaluation.metrics(), "part": name, "seconds": seconds, "doubt": setting.doubt(model, found)}
    return {**figures, "images_per_second": len(source) / seconds}, answers


def print_evaluation(figures: dict[str, Any], answers: Answers, as_json: bool, out: Path | None) -> None:
    """For people or for programs; `out` gets the JSON as well."""
    rows = [vars(row) for row in answers.evaluation.per_class()]
    record = {
        **figures,
        "per_class": rows,
        "confusion": answers.evaluation.confusion().tolist(),
        "unreadable_files": answers.problems,
    }
    if (console := tell(record, as_json, out)) is None:
        return
    shown = ("part", "count", "top1", "top5", "loss", "ece", "unreadable", "images_per_second")
    console.print(summary_table(figures, shown))
    worst = sorted((row for row in rows if row["f1"] is not None), key=lambda row: row["f1"])[:SHOWN]
    classes = Table(
        "class", "pictures", "precision", "recall", "F1", box=None, title="worst classes", title_justify="left"
    )
    for row in worst:
        shares = ("-" if row[key] is None else f"{row[key]:.3f}" for key in ("precision", "recall", "f1"))
        classes.add_row(row["name"], str(row["count"]), *shares)
    console.print(classes)
    evaluation = answers.evaluation
    for pair in evaluation.most_confused(5):
        names = f"{evaluation.name(pair.true)} taken for {evaluation.name(pair.predicted)}"
        console.print(f"{names}: {plural(pair.count, 'time')} ({pair.share:.1%})", soft_wrap=True)
    for problem in answers.problems[:SHOWN]:
        console.print(f"unreadable: {problem}", soft_wrap=True)


def _few(names: object) -> str:
    return ", ".join(names[:4]) + (", ..." if len(names) > 4 else "") if isinstance(names, tuple) else str(names)
