"""The command line: one verb per job. Bad arguments exit with 2, bad data with 1 and one clear line.

torch is imported inside the verbs, so that `--help` answers at once.
"""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import tyro
from tyro.conf import OmitArgPrefixes, Positional, arg

import vitreous
from vitreous.cli.errors import print_own_warnings, refuse
from vitreous.cli.evaluate import evaluate
from vitreous.cli.explain import explain
from vitreous.cli.serve import serve
from vitreous.common.checks import suggestion
from vitreous.common.text import printable
from vitreous.common.threads import spin_briefly
from vitreous.training.config import TrainConfig

app = tyro.extras.SubcommandApp()
VERBS = ("train", "eval", "predict", "embed", "explain", "convert", "serve", "info", "data", "demo")
FLAGS = (tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes)
PLAIN = (*FLAGS, tyro.conf.DisallowNone)  # whoever wants none leaves the flag out


def main() -> None:
    """Entry point of the `vitreous` command."""
    spin_briefly()
    print_own_warnings()
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    if word == "--version":
        print(f"vitreous {vitreous.__version__}")
        return
    if word and not word.startswith("-") and word not in VERBS:
        print(f"vitreous: there is no verb {word!r}{suggestion(word, VERBS)}: use {', '.join(VERBS)}", file=sys.stderr)
        sys.exit(2)
    try:
        try:
            words = numbers_last(lists_together(sys.argv[1:]))
            app.cli(prog="vitreous", description="A Vision Transformer you can see through.", config=PLAIN, args=words)
        finally:
            sys.stdout.flush()  # here, where it can be seen that nobody reads on
    except (ValueError, OSError) as error:
        refuse(error)


def numbers_last(words: Sequence[str]) -> list[str]:
    """The words of a command with --image-size at their end, where what follows its numbers is not taken for one.

    >>> numbers_last(["predict", "runs/first/best", "--image-size", "64", "cat.jpg"])
    ['predict', 'runs/first/best', 'cat.jpg', '--image-size', '64']
    """
    if "--image-size" not in words or "--" in words:
        return list(words)
    start = max(i for i, word in enumerate(words) if word == "--image-size")
    end = next((i for i, word in enumerate(words) if i > start and not word.isdecimal()), len(words))
    if end == start + 1:  # no number at all: the parser says what is missing
        return list(words)
    return [*words[:start], *words[end:], *words[start:end]]


def lists_together(words: Sequence[str]) -> list[str]:
    """Merge repeated list options into one, because the parser silently keeps only the last occurrence.

    >>> lists_together(["train", "--set", "depth=2", "--steps", "3", "--set", "registers=4"])
    ['train', '--steps', '3', '--set', 'depth=2', 'registers=4']
    """
    rest = list(words)
    for option in ("--set", "--ignore"):
        if "--" in rest or sum(word.split("=")[0] == option for word in rest) < 2:
            continue
        remaining, values, inside = [], [], False
        for word in rest:
            if word.split("=")[0] == option:
                inside = True
                values += [word.removeprefix(f"{option}=")] if "=" in word else []
            elif inside and not word.startswith("-"):
                values.append(word)
            else:
                inside = False
                remaining.append(word)
        rest = [*remaining, option, *values]
    return rest


@app.command
def train(config: OmitArgPrefixes[TrainConfig]) -> None:
    """Train on a folder of pictures, or on anything else that --data takes; what is left out is chosen and said.

    Example: vitreous train --data pictures/ --out runs/first
    """
    _train(config, shlex.join(["vitreous", *sys.argv[1:]]))


def train_recipe(config: TrainConfig) -> None:
    """What a recipe's `python -m recipes.NAME` runs: its config, with whatever flags change."""
    spin_briefly()
    print_own_warnings()
    try:
        words = lists_together(sys.argv[1:])
        _train(tyro.cli(TrainConfig, default=config, config=FLAGS, args=words), shlex.join(["python", *sys.argv]))
    except (ValueError, OSError) as error:
        refuse(error)


def _train(config: TrainConfig, command: str) -> None:
    from vitreous.training.monitor import Interrupted
    from vitreous.training.run import train as run

    try:
        run(config, command)
    except Interrupted as stop:
        print(printable(f"vitreous: {stop}"), file=sys.stderr)
        sys.exit(128 + stop.signal_number)


app.command(name="eval")(evaluate)


@app.command
def predict(
    checkpoint: Annotated[Positional[Path], arg(metavar="CHECKPOINT")],
    images: Annotated[Positional[tuple[str, ...]], arg(metavar="IMAGES...")],
    *,
    top: int | None = None,
    image_size: Annotated[tuple[int, ...], arg(metavar="PIXELS | HEIGHT WIDTH")] = (),
    flip: bool = False,
    batch_size: int = 32,
    device: str = "auto",
    precision: Literal["fp32", "bf16", "auto"] = "fp32",
    decode: Literal["exact", "fast"] = "exact",
    json: bool = False,
    out: Path | None = None,
) -> None:
    """What a model sees in pictures: labels, or a mask for each where the model is a segmenter.

    Example: vitreous predict runs/first/best cat.jpg "holiday/*.png"

    Args:
        checkpoint: A folder with a model, such as runs/first/best, another system's file, or hf-hub:owner/name.
        images: Files, folders, globs, or - to read paths from standard input.
        top: How many labels for each picture; 5 where left out.
        image_size: Another size than the checkpoint's; its positions are resampled.
        flip: Average with the mirror image.
        batch_size: Pictures at once.
        device: auto, cpu, cuda, mps.
        precision: Of the computation.
        decode: Of JPEGs: fast reads large ones at a reduced scale, which changes some answers.
        json: Print a line of JSON for each picture instead of a table.
        out: Write to a .json, .jsonl, .csv or .parquet file instead; for a segmenter, a folder for masks and overlays.
    """
    from vitreous.cli.predict_command import predict_files

    predict_files(checkpoint, images, image_size, top, flip, batch_size, device, precision, json, out, decode)


@app.command
def embed(
    checkpoint: Annotated[Positional[Path], arg(metavar="CHECKPOINT")],
    images: Annotated[Positional[tuple[str, ...]], arg(metavar="IMAGES...")],
    *,
    out: Path,
    image_size: Annotated[tuple[int, ...], arg(metavar="PIXELS | HEIGHT WIDTH")] = (),
    flip: bool = False,
    batch_size: int = 32,
    device: str = "auto",
    precision: Literal["fp32", "bf16", "auto"] = "fp32",
    decode: Literal["exact", "fast"] = "exact",
) -> None:
    """Pictures as vectors: the pooled features before the head, to search, cluster or learn from.

    Example: vitreous embed runs/first/best pictures/ --out vectors.parquet

    Args:
        checkpoint: A folder with a model, such as runs/first/best, another system's file, or hf-hub:owner/name.
        images: Files, folders, globs, or - to read paths from standard input.
        out: A .parquet, .jsonl, .json or .csv file.
        image_size: Another size than the checkpoint's; its positions are resampled.
        flip: Average with the mirror image.
        batch_size: Pictures at once.
        device: auto, cpu, cuda, mps.
        precision: Of the computation.
        decode: Of JPEGs: fast reads large ones at a reduced scale, which changes some vectors.
    """
    from vitreous.cli.predict_command import embed_files

    embed_files(checkpoint, images, image_size, flip, batch_size, device, precision, out, decode)


app.command(explain)
app.command(serve)


@app.command
def convert(
    source: Annotated[Positional[str], arg(metavar="SRC")],
    target: Annotated[Positional[Path], arg(metavar="DST")],
    *,
    to: str,
    from_: Annotated[str | None, arg(name="from")] = None,
    image_size: Annotated[tuple[int, ...], arg(metavar="PIXELS | HEIGHT WIDTH")] = (),
    num_classes: int | None = None,
    set: tuple[str, ...] = (),
    lossy: bool = False,
    check: bool = False,
) -> None:
    """A checkpoint in another system's format, read again and compared with what it was.

    Example: vitreous convert ViT-B_16.npz vit-b16/ --to huggingface

    Args:
        source: A file or folder of any format, or hf-hub:owner/name.
        target: A folder, or a file whose ending says of what kind: .safetensors, .pth, .npz, .pdparams.
        to: The format: vitreous, google, big_vision, timm, huggingface, torchvision, dinov2, mae, lucidrains, paddle,
            paddlevit.
        from_: The format of the source, where it is not found out by itself.
        image_size: Another size; positions are resampled in the way of the system they come from.
        num_classes: A fresh head for so many classes; 0 for none.
        set: What the tensors cannot tell, as field=JSON: --set num_heads=4
        lossy: Write it even where the other system computes otherwise with the same weights, such as another GELU.
        check: Report the differences stage by stage.
    """
    from vitreous.cli.convert_command import convert as run
    from vitreous.common.codec import parse_fields

    run(source, target, to, from_, image_size, num_classes, parse_fields(set), lossy, check)


@app.command
def info(
    name: Annotated[Positional[str], arg(metavar="NAME|CHECKPOINT")] = "",
    *,
    num_classes: int | None = None,
    image_size: Annotated[tuple[int, ...], arg(metavar="PIXELS | HEIGHT WIDTH")] = (),
    json: bool = False,
) -> None:
    """What a model is made of and what it costs: parameters, operations, tokens, memory.

    Example: vitreous info ViT-B/16 --image-size 384

    Args:
        name: A preset, named as its paper names it, or a checkpoint. Left out: a list of all presets.
        num_classes: Another number of classes than the preset's; 0 for none.
        image_size: Another image size than the preset's.
        json: Print JSON instead of a table.
    """
    from vitreous.cli import info as report

    if not name:
        report.print_presets(as_json=json)
        return
    report.print_model(name, num_classes, image_size or None, as_json=json)


@app.command
def data(
    action: Positional[Literal["check"]],
    spec: Annotated[Positional[str], arg(metavar="DIR|NAME")],
    *,
    data_root: Path | None = None,
    out: Path | None = None,
    json: bool = False,
) -> None:
    """A data set's doctor: counts, balance, unreadable and duplicate pictures, leaks between parts, odd sizes, masks.

    It exits with 1 where something should be mended before training.

    Example: vitreous data check pictures/ --out sheet.png

    Args:
        action: What to do; check is all there is.
        spec: Anything that `train --data` takes.
        data_root: A local copy of a data set that would be downloaded.
        out: Write a contact sheet, some pictures of every class, to this PNG.
        json: Print JSON instead of a report.
    """
    from vitreous.data.doctor.check import run_check

    if run_check(spec, data_root, out, json):
        sys.exit(1)


@app.command
def demo() -> None:
    """Train a small model on handwritten digits, evaluate it and report: about a minute on a laptop.

    Example: vitreous demo
    """
    from vitreous.cli.demo import run

    run()
