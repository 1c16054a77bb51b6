"""`vitreous predict` with a segmenter: a mask and an overlay for every picture, and what share each class has."""

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from vitreous.common.checks import fail
from vitreous.common.terminal import console as standard_output
from vitreous.common.text import json_text, one_line, printable
from vitreous.inference.mask_images import is_written_here, overlay, write_mask, write_png
from vitreous.inference.outputs import Written, clean, summary
from vitreous.inference.segment_predictor import Segmentation, SegmentPredictor

KINDS = ("masks", "overlays")
SHOWN = 0.005  # a smaller share of a picture is not worth a word


def segment_files(predictor: SegmentPredictor, paths: Sequence[Path], as_json: bool, out: Path | None) -> None:
    """`out` is a folder: masks/NAME.png holds the ids and shows them in colours, overlays/NAME.png the picture too."""
    if out is not None and not out.is_dir() and (out.suffix or out.exists()):
        fail("out", out, "a folder for masks, without an ending, because the checkpoint is a segmenter")
    names = _names(paths)
    if out is not None:
        _check_replaceable(out, names.values())
    console = standard_output(soft_wrap=True)
    pictures = errors = 0
    for path, answer in zip(paths, predictor.stream(paths), strict=True):
        pictures, errors = pictures + 1, errors + (answer.error is not None)
        if out is not None and answer.error is None:
            _write(predictor, answer, out, names[path])
        if as_json:
            print(json_text(_record(predictor, answer)), flush=True)
        else:
            console.print(_line(predictor, answer))
    text = summary(Written(pictures, errors), out, predictor.throughput, predictor.device)
    print(printable(text), file=sys.stderr)
    if out is None and not as_json:
        print("masks and overlays are written with --out FOLDER", file=sys.stderr)


def _names(paths: Sequence[Path]) -> dict[Path, str]:
    """What a picture's mask is called: its path below the folder that all have in common, without its ending.

    Where two pictures differ in nothing else, all keep their endings.
    """
    absolute = {path: Path(os.path.abspath(path)) for path in paths}
    root = Path(os.path.commonpath([path.parent for path in absolute.values()]))
    short = {path: str(there.relative_to(root).with_suffix("")) for path, there in absolute.items()}
    if len(set(short.values())) == len(short):
        return short
    return {path: str(there.relative_to(root)) for path, there in absolute.items()}


def _check_replaceable(out: Path, names: Iterable[str]) -> None:
    """Refuse to replace masks or overlays that predict has not written, such as the masks of a data set."""
    for name in names:
        for file in (out / kind / f"{name}.png" for kind in KINDS):
            if os.path.lexists(file) and not is_written_here(file):
                raise ValueError(f"{file} exists and was not written by predict: choose another --out")


def _write(predictor: SegmentPredictor, answer: Segmentation, out: Path, name: str) -> None:
    assert answer.mask is not None
    assert answer.pixels is not None
    mask, laid = (out / kind / f"{name}.png" for kind in KINDS)
    for file in (mask, laid):
        file.parent.mkdir(parents=True, exist_ok=True)
    write_mask(answer.mask, mask, predictor.background, predictor.config.ids)
    pixels = answer.pixels.repeat(3, axis=2) if answer.pixels.shape[2] == 1 else answer.pixels
    write_png(Image.fromarray(overlay(pixels, answer.mask, background=predictor.background)), laid)


def _shares(predictor: SegmentPredictor, answer: Segmentation) -> list[tuple[str, float]]:
    pairs = zip(predictor.labels, answer.shares(predictor.config.num_classes), strict=True)
    return sorted(pairs, key=lambda pair: -pair[1])


def _record(predictor: SegmentPredictor, answer: Segmentation) -> dict[str, Any]:
    if answer.mask is None:
        return {"path": clean(answer.name), "error": clean(answer.error or "")}
    shares = [{"label": clean(label), "share": share} for label, share in _shares(predictor, answer) if share]
    return {
        "path": clean(answer.name),
        "height": answer.mask.shape[0],
        "width": answer.mask.shape[1],
        "classes": shares,
    }


def _line(predictor: SegmentPredictor, answer: Segmentation) -> str:
    if answer.mask is None:
        return f"{one_line(answer.name)}: {answer.error}"
    shown = [f"{label} {share:.1%}" for label, share in _shares(predictor, answer) if share >= SHOWN]
    return f"{one_line(answer.name)}: {', '.join(shown)}"
