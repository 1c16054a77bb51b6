"""Names of files and classes never reach the terminal as escape sequences."""

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

TITLE = "\x1b]0;owned\x07\x9b2J"  # sets the title of a terminal and clears it
BAD = f"bad{TITLE}\nno problems.png"


def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: object) -> str:
    """Everything that a command prints."""
    monkeypatch.setattr(sys, "argv", ["vitreous", *map(str, words)])
    with contextlib.suppress(SystemExit):
        main()
    shown = capsys.readouterr()
    return shown.out + shown.err


@pytest.mark.slow
def test_no_verb_prints_control_characters(
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
    for verb, text in printed.items():
        assert not [char for char in text if not char.isprintable() and char not in "\n\t"], verb
        assert "\nno problems" not in text, verb  # a line end in a name does not begin a line
    for verb in ("train", "check", "predict"):
        assert "x1b]0;owned" in printed[verb].replace("\n", ""), verb
    lines = [json.loads(line) for line in printed["json"].splitlines() if line.startswith("{")]
    assert str(folder / "cat" / BAD) in [line["path"] for line in lines]  # a program gets the name itself


def test_a_console_escapes_text_but_keeps_its_styles() -> None:
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


def test_words_of_any_script_stay_as_they_are() -> None:
    for word in ("猫", "Käfer", "a\u200cb", "👩\u200d🔬"):
        assert one_line(word) == word
        assert json.loads(json_text({"label": word}))["label"] == word
