"""Escape sequences in file and class names never reach the terminal."""

import contextlib
import io
import json
import sys
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

from images import encoded, smooth
from vitreous.cli.main import main
from vitreous.common.text import SafeConsole, json_text, one_line

TITLE = "\x1b]0;owned\x07\x9b2J"  # sets the terminal title and clears the screen
BAD = f"bad{TITLE}\nno problems.png"


def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: object) -> str:
    """Return everything that a command prints."""
    monkeypatch.setattr(sys, "argv", ["vitreous", *map(str, words)])
    with contextlib.suppress(SystemExit):
        main()
    shown = capsys.readouterr()
    return shown.out + shown.err


@pytest.mark.slow
def test_no_command_prints_control_characters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "images"
    for label in ("cat", f"dog{TITLE}"):
        (folder / label).mkdir(parents=True)
        for i in range(6):
            (folder / label / f"{i}.png").write_bytes(encoded(smooth(16, 16, i + 9 * (label == "cat"))))
    (folder / "cat" / BAD).write_bytes(b"not an image")
    sizes = ["--set", "depth=1", "width=32", "num_heads=2", "mlp_width=32"]
    given = ["--data", folder, "--model", "ViT-Lite-6/4", *sizes, "--steps", 1, "--batch-size", 4, "--workers", 0]
    printed = {"train": run(capsys, monkeypatch, "train", *given, "--out", tmp_path / "run", "--max-unreadable", 1)}
    best = tmp_path / "run" / "best"
    assert best.is_dir(), printed["train"]
    printed |= {
        "check": run(capsys, monkeypatch, "data", "check", folder),
        "predict": run(capsys, monkeypatch, "predict", best, folder),
        "json": run(capsys, monkeypatch, "predict", best, folder, "--json"),
        "eval": run(capsys, monkeypatch, "eval", best, "--data", folder, "--split", "train", "--workers", 0),
        "error": run(capsys, monkeypatch, "predict", best, folder / "cat" / f"absent{TITLE}.png"),
        "info": run(capsys, monkeypatch, "info", best),
    }
    for command, text in printed.items():
        assert not [char for char in text if not char.isprintable() and char not in "\n\t"], command
        assert "\nno problems" not in text, command  # a line break in a name does not start a new line
    for command in ("train", "check", "predict"):
        assert "x1b]0;owned" in printed[command].replace("\n", ""), command
    lines = [json.loads(line) for line in printed["json"].splitlines() if line.startswith("{")]
    assert str(folder / "cat" / BAD) in [line["path"] for line in lines]  # JSON output has the unescaped name


def test_console_escapes_text_but_keeps_styles() -> None:
    console = SafeConsole(file=io.StringIO(), force_terminal=True, width=80, color_system="standard")
    table = Table("name")
    table.add_row(Text(f"x{TITLE}", style="bold"))
    console.print(table)
    console.print(f"[red]plain{TITLE}[/red]")
    written = console.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b[31mplain" in written
    assert "\x07" not in written
    assert "\x9b" not in written
    assert "\x1b]" not in written


def test_text_in_any_script_is_unchanged() -> None:
    for word in ("猫", "Käfer", "a\u200cb", "👩\u200d🔬"):
        assert one_line(word) == word
        assert json.loads(json_text({"label": word}))["label"] == word
