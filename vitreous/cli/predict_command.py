"""`vitreous predict` and `vitreous embed`: pictures in, answers to the terminal or to a file, and how fast it went."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from vitreous.common.checks import fail
from vitreous.common.text import printable
from vitreous.inference.image_paths import expand
from vitreous.inference.outputs import Shape, Written, json_line, print_table, summary, write, writer_for
from vitreous.inference.predictor import Predictor
from vitreous.inference.segment_files import segment_files
from vitreous.inference.segment_predictor import SegmentPredictor
from vitreous.model.segmenter import Segmenter
from vitreous.weights.load import load, load_encoder

Precision = Literal["fp32", "bf16", "auto"]
Decode = Literal["exact", "fast"]
TOP = 5  # labels of a picture, where nobody says how many


def predict_files(
    checkpoint: Path,
    images: Sequence[str],
    image_size: Sequence[int],
    top: int | None,
    flip: bool,
    batch_size: int,
    device: str,
    precision: Precision,
    as_json: bool,
    out: Path | None,
    decode: Decode = "exact",
) -> None:
    """Labels and probabilities of every picture."""
    paths = expand(images)
    model = load(checkpoint, image_size=image_size or None)
    if isinstance(model, Segmenter):
        if top is not None:
            fail("top", top, "left out for a segmenter: it says what share of a picture every class has")
        if decode != "exact":
            fail("decode", decode, "exact for a segmenter: it needs every pixel")
        segment_files(SegmentPredictor(model, device, precision, flip, batch_size=batch_size), paths, as_json, out)
        return
    if out is not None:
        writer_for(out)  # a name that cannot be written to is said before the work, not after it
    predictor = Predictor(model, device, batch_size, precision, TOP if top is None else top, flip, decode=decode)
    answers = predictor.stream(paths)
    if out is not None:
        written = write(answers, out, Shape(labels=predictor.top))
    elif as_json:
        pictures = errors = 0
        for answer in answers:
            print(json_line(answer), flush=True)
            pictures, errors = pictures + 1, errors + (answer.error is not None)
        written = Written(pictures, errors)
    else:
        written = print_table(answers)
    _say(predictor, written, out)


def embed_files(
    checkpoint: Path,
    images: Sequence[str],
    image_size: Sequence[int],
    flip: bool,
    batch_size: int,
    device: str,
    precision: Precision,
    out: Path,
    decode: Decode = "exact",
) -> None:
    """The features of every picture."""
    writer_for(out)
    paths = expand(images)
    encoder = load_encoder(checkpoint, image_size or None)
    predictor = Predictor(encoder, device, batch_size, precision, flip=flip, decode=decode)
    written = write(predictor.stream_embeddings(paths), out, Shape(width=predictor.width))
    _say(predictor, written, out)


def _say(predictor: Predictor, written: Written, out: Path | None) -> None:
    print(printable(summary(written, out, predictor.throughput, predictor.device)), file=sys.stderr)
