"""Entry point of the `vitreous` command. The exit status is 2 for invalid arguments and 1 for invalid data.

Commands import torch only when they run, which keeps `--help` fast.
"""

import codecs
import dataclasses
import inspect
import io
import itertools
import json
import os
import re
import shlex
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import tyro

import vitreous
from vitreous.cli.bench import bench
from vitreous.cli.calibrate import calibrate
from vitreous.cli.completion import install_completion
from vitreous.cli.convert import convert
from vitreous.cli.data import data
from vitreous.cli.demo import demo
from vitreous.cli.embed import embed
from vitreous.cli.eval import evaluate
from vitreous.cli.explain import explain
from vitreous.cli.export import export
from vitreous.cli.extend import extend
from vitreous.cli.info import info
from vitreous.cli.predict import predict
from vitreous.cli.push import push
from vitreous.cli.quantise import quantise
from vitreous.cli.serve import serve
from vitreous.cli.train import Flags, run_flags, train
from vitreous.common.checks import BadValue, suggestion
from vitreous.common.text import printable
from vitreous.common.threads import spin_briefly
from vitreous.training import TrainConfig

COMMANDS: dict[str, Callable[..., None]] = {
    "train": train, "eval": evaluate, "calibrate": calibrate, "predict": predict, "embed": embed, "explain": explain,
    "extend": extend, "convert": convert, "quantise": quantise, "export": export, "push": push, "serve": serve,
    "bench": bench, "info": info, "data": data, "demo": demo,
}  # fmt: skip
FLAGS = (tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes)
PLAIN = (*FLAGS, tyro.conf.DisallowNone)  # None cannot be typed; omit the flag instead
# Flags of other tools whose names are too different from ours for the parser to suggest a replacement.
OTHER_NAMES = {
    "--learning-rate": "--lr", "--wd": "--weight-decay", "--bs": "--batch-size", "--drop-path": "--stochastic-depth",
    "--label-smoothing": "--smoothing", "--pretrained": "--init", "--data-dir": "--data", "--output-dir": "--out",
}  # fmt: skip


def join_lines(text: str) -> str:
    """Join the lines of each paragraph."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text.strip()))


# tyro keeps line breaks of docstrings before indented lines, and those before quotes, flags and numbers.
with suppress(AttributeError):  # in another version of tyro
    tyro._strings.remove_single_line_breaks = join_lines  # type: ignore[assignment]


def hide_empty_defaults(helptext: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap tyro's function for the help of an argument, so that only defaults with a value are printed."""

    def behavior_hint(default: str) -> str:
        return "" if default in ("None", "False", "", "''") else f"(default: {default})"

    def wrapped(arg: Any, lowered: Any, **options: Any) -> Any:
        with suppress(AttributeError, TypeError):  # in another version of tyro
            argconf = dataclasses.replace(arg.field.argconf, help_behavior_hint=behavior_hint)
            arg = dataclasses.replace(arg, field=dataclasses.replace(arg.field, argconf=argconf))
        return helptext(arg, lowered, **options)

    return wrapped


with suppress(AttributeError):
    tyro._arguments.generate_argument_helptext = hide_empty_defaults(tyro._arguments.generate_argument_helptext)
DESCRIPTION = (
    "A Vision Transformer you can see through.\n\n"
    "--version prints the version. --install-completion [bash|zsh|fish] installs shell completion."
)
app = tyro.extras.SubcommandApp()
for name, command in COMMANDS.items():
    function = inspect.unwrap(command)
    # The same for the lines of a parameter.
    function.__doc__ = re.sub(r"\n {8,}", " ", inspect.cleandoc(function.__doc__ or ""))
    app.command(name=name)(command)


def main() -> None:
    """Entry point of the `vitreous` command."""
    spin_briefly()
    print_own_warnings()
    escape_unencodable()
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    if word == "--version":
        print(f"vitreous {vitreous.__version__}")
        return
    if word and not word.startswith("-") and word not in COMMANDS:
        hint = suggestion(word, COMMANDS)
        print(f"vitreous: unknown command {word!r}{hint}; choose from {', '.join(COMMANDS)}", file=sys.stderr)
        sys.exit(2)
    try:
        try:
            if word == "--install-completion":
                install_completion(sys.argv[2] if len(sys.argv) > 2 else None, COMMANDS, PLAIN)
                return
            reject_other_names(sys.argv[1:])
            reject_bare_data(sys.argv[1:])
            words = numbers_last(lists_together(sys.argv[1:]))
            if word in COMMANDS:  # on its own, so that errors suggest only flags of this command
                tyro.cli(COMMANDS[word], prog=f"vitreous {word}", config=PLAIN, args=words[1:])
            else:
                app.cli(prog="vitreous", description=DESCRIPTION, config=PLAIN, args=words)
        finally:
            sys.stdout.flush()  # a closed pipe must raise inside this try
    except (ValueError, OSError) as error:
        exit_with_error(error)


def train_recipe(config: TrainConfig) -> None:
    """Run a recipe (`python -m recipes.NAME`). Command-line flags override fields of its config."""
    spin_briefly()
    print_own_warnings()
    escape_unencodable()
    try:
        reject_other_names(sys.argv[1:])
        flags = tyro.cli(Flags, default=Flags(**vars(config)), config=FLAGS, args=lists_together(sys.argv[1:]))
        run_flags(flags.config(), shlex.join(["python", *sys.argv]))
    except (ValueError, OSError) as error:
        exit_with_error(error)


def run_recipes(script: Callable[[], object]) -> None:
    """Call the main function of a recipe that consists of several runs. Its errors end the program with one line."""
    from vitreous.training.run import Interrupted

    try:
        script()
    except Interrupted as stop:
        print(f"{stop}, or repeat this command", file=sys.stderr)
        sys.exit(128 + stop.signal_number)
    except (ValueError, OSError) as error:
        exit_with_error(error)


# ---- Arguments -------------------------------------------------------------------------------------------------------


def reject_other_names(words: Sequence[str]) -> None:
    """Reject flags of other tools, and suggest the flag with the same meaning."""
    for word in words:
        name = word.split("=")[0].replace("_", "-")
        if name in OTHER_NAMES and (words[0], name) != ("info", "--pretrained"):
            raise BadValue(f"unknown option {name}; did you mean {OTHER_NAMES[name]}?")


def reject_bare_data(words: Sequence[str]) -> None:
    """Reject a data set that is given without `--data` or `data check`, and suggest what to type."""
    arguments = list(itertools.takewhile(lambda word: not word.startswith("-"), words))
    before = {"train": 1, "eval": 2}.get(words[0] if words else "")  # number of words before the data set
    if before is not None and len(arguments) > before:
        raise BadValue(f"unexpected argument {arguments[before]!r}; did you mean --data {arguments[before]}?")
    if arguments[:1] == ["data"] and len(arguments) == 2 and arguments[1] != "check":
        raise BadValue(f"unknown action {arguments[1]!r}; did you mean `vitreous data check {arguments[1]}`?")


def numbers_last(words: Sequence[str]) -> list[str]:
    """Move --image-size to the end, so that a positional argument after it is not parsed as another number.

    >>> numbers_last(["predict", "runs/first/best", "--image-size", "64", "cat.jpg"])
    ['predict', 'runs/first/best', 'cat.jpg', '--image-size', '64']
    """
    if "--image-size" not in words or "--" in words:
        return list(words)
    start = max(i for i, word in enumerate(words) if word == "--image-size")
    end = next((i for i, word in enumerate(words) if i > start and not word.isdecimal()), len(words))
    if end == start + 1:  # no number follows; the parser reports the error
        return list(words)
    return [*words[:start], *words[end:], *words[start:end]]


def lists_together(words: Sequence[str]) -> list[str]:
    """Merge repeated list options, because the parser keeps only the last occurrence.

    >>> lists_together(["train", "--set", "depth=2", "--steps", "3", "--set", "registers=4"])
    ['train', '--steps', '3', '--set', 'depth=2', 'registers=4']
    """
    rest = list(words)
    for option in ("--set", "--ignore", "--target"):
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


# ---- Errors and warnings ---------------------------------------------------------------------------------------------


def exit_with_error(error: Exception) -> NoReturn:
    """Print an error as one escaped line. Exit with status 2 for an invalid argument or 1 for invalid data."""
    if isinstance(error, BrokenPipeError):  # as in `vitreous info | head -3`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # avoids an error message from Python at exit
        sys.exit(1)
    print(f"vitreous: {printable(str(error))}", file=sys.stderr)
    sys.exit(2 if isinstance(error, BadValue) else 1)


def print_own_warnings() -> None:
    """Print each warning of Vitreous as one line on stderr, only in the first process. Other warnings are unchanged."""
    usual = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *place: Any, **options: Any) -> None:
        if not category.__module__.startswith("vitreous."):
            usual(message, category, *place, **options)
        elif os.environ.get("RANK", "0") == "0":
            print(f"vitreous: warning: {printable(str(message))}", file=sys.stderr)

    warnings.showwarning = show


def escape_unencodable() -> None:
    r"""Print characters that the terminal cannot encode, e.g. in a Latin-1 locale, as \uXXXX instead of raising."""

    def escape(error: UnicodeError) -> tuple[str, int]:
        assert isinstance(error, UnicodeEncodeError)
        return json.dumps(error.object[error.start : error.end])[1:-1], error.end

    codecs.register_error("vitreous", escape)  # unlike "backslashreplace", this keeps JSON valid
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="vitreous")
