"""Parsing that all commands share."""

import io
import itertools
import json
import os
import re
import subprocess
import sys

import pytest

import vitreous
from command_line import CommandLine
from vitreous.cli.main import COMMANDS, app, escape_unencodable


@pytest.mark.slow
def test_every_command_is_listed_and_has_an_example(command: CommandLine) -> None:
    assert set(COMMANDS) == set(app._subcommands)
    for verb in COMMANDS:
        done = command(verb, "--help")
        assert done.returncode == 0
        assert f"Example: vitreous {verb}" in done.stdout


@pytest.mark.parametrize(
    "words",
    [
        ["--set", "registers=4", "--lossy", "--set", "num_heads=3"],
        ["--set=registers=4", "--set=num_heads=3"],
        ["--set", "registers=4", "num_heads=3"],
    ],
)
def test_a_repeated_set_keeps_every_field(
    words: list[str], command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[object] = []
    monkeypatch.setattr("vitreous.weights.convert.convert", lambda *_, **options: given.append(options["overrides"]))
    monkeypatch.setattr("vitreous.cli.convert._print", lambda *_, **__: None)
    assert command("convert", "a.pth", "b", "--to", "vitreous", *words).returncode == 0
    assert given == [{"registers": 4, "num_heads": 3}]


def test_a_misspelt_command_gets_a_suggestion(command: CommandLine) -> None:
    done = command("inof")
    assert done.returncode == 2
    assert "unknown command 'inof' (did you mean 'info'?)" in done.stderr


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["train", "pictures/", "--epochs", "3"], "did you mean --data pictures/?"),
        (["eval", "runs/d/best", "pictures/"], "did you mean --data pictures/?"),
        (["data", "pictures/"], "vitreous data check pictures/"),
    ],
)
def test_error_for_data_without_its_flag_names_the_flag(words: list[str], answer: str, command: CommandLine) -> None:
    done = command(*words)
    assert done.returncode == 2
    assert answer in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [["info"], ["train", "--help"], ["--help"], ["info", "ViT-B/16", "--json"]], ids=" ".join
)
def test_a_closed_pipe_ends_the_command_without_a_traceback(words: list[str]) -> None:
    """For example `vitreous info | head -3`."""
    usual = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as out:
        command = [sys.executable, "-m", "vitreous", *words]
        done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, env=usual)
    assert (done.returncode, done.stderr) == (1, "")


def test_help_of_optional_flags_does_not_mention_none(command: CommandLine) -> None:
    for verb in COMMANDS:
        assert "{None}" not in command(verb, "--help").stdout


def test_help_prints_only_defaults_with_a_value(command: CommandLine) -> None:
    text = " ".join(command("eval", "--help").stdout.replace("│", " ").split())
    assert "(default: fp32)" in text
    assert not re.search(r"\(default: (None|False|''|)\)", text)


@pytest.mark.parametrize("verb", COMMANDS)
def test_help_breaks_lines_only_where_they_are_full(
    verb: str, command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Descriptions have line breaks in the source, which must not be printed."""
    monkeypatch.setenv("COLUMNS", "80")
    lines = [line.replace("│", " ").rstrip() for line in command(verb, "--help").stdout.splitlines()]
    compared = 0
    for framed, panel in itertools.groupby(lines, lambda line: line.startswith("  ")):
        texts = list(panel) if framed else []
        width = max(map(len, texts), default=0)
        for line, following in itertools.pairwise(texts):
            if line.startswith(" " * 10) and following.startswith(" " * 10):
                assert len(line) + 1 + len(following.split()[0]) > width - 3, (line, following)
                compared += 1
    assert compared or verb in ("demo", "push")  # which have few flags


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "side"),
    [
        (["--image-size", "64", "ViT-Ti/16"], 64),
        (["--image-size", "64", "--", "ViT-Ti/16"], 64),
        (["ViT-Ti/16", "--image-size", "64", "--json", "--image-size", "128"], 128),  # the last one counts
    ],
)
def test_numbers_may_come_before_a_name(command: CommandLine, words: list[str], side: int) -> None:
    out = command("info", *words).stdout
    assert f"{side} x {side}" in out or f'"tokens": {(side // 16) ** 2 + 1}' in out


def test_version_is_printed(command: CommandLine) -> None:
    assert command("--version").stdout == f"vitreous {vitreous.__version__}\n"


def test_characters_that_the_terminal_cannot_encode_are_escaped_as_in_json(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    escape_unencodable()
    names = ["cat", "\u732b", "\U0001f408", "caf\udce9"]
    print(json.dumps(names, ensure_ascii=False), flush=True)
    assert json.loads(stream.buffer.getvalue()) == names  # type: ignore[attr-defined]
