"""Shell completion."""

import shutil
import subprocess
from pathlib import Path

import pytest

from command_line import CommandLine
from vitreous.cli.completion import SHELLS, script_path
from vitreous.cli.main import COMMANDS

CASES = [
    ("vitreous tr", ["train"]),
    ("vitreous train --ep", ["--epochs"]),
    ("vitreous train --task m", ["mae", "mpp", "multilabel"]),
    ("vitreous serve --max-b", ["--max-batch", "--max-body-mb"]),
    ("vitreous data ", ["check"]),
    ("vitreous predict some", []),  # the shell completes file names
]


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("shell", SHELLS)
def test_script_has_all_commands_and_is_valid(shell: str, command: CommandLine) -> None:
    done = command("--install-completion", shell)
    assert done.returncode == 0
    path = script_path(shell)
    assert str(path) in done.stdout
    words = set(path.read_text().replace('"', " ").replace("-a ", " ").split())
    assert set(COMMANDS) <= words
    if shutil.which(shell):
        subprocess.run([shell, "-n", str(path)], check=True)


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(("line", "expected"), CASES)
def test_bash_completes(line: str, expected: list[str], command: CommandLine) -> None:
    assert command("--install-completion", "bash").returncode == 0
    words = " ".join(f"'{word}'" for word in line.split(" "))
    code = (
        f"source '{script_path('bash')}'; complete -p vitreous >/dev/null || exit 1\n"
        f"COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n"
        "_vitreous; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    done = subprocess.run(["bash", "--norc", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == expected


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
@pytest.mark.parametrize(("line", "expected"), CASES[:3])
def test_fish_completes(line: str, expected: list[str], command: CommandLine) -> None:
    assert command("--install-completion", "fish").returncode == 0
    code = f"source '{script_path('fish')}'; complete -C '{line}'"
    done = subprocess.run(["fish", "--no-config", "-c", code], capture_output=True, text=True, check=True)
    assert [found.split("\t")[0] for found in done.stdout.splitlines()] == expected


def test_the_shell_is_taken_from_the_environment(command: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert str(script_path("fish")) in command("--install-completion").stdout
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    done = command("--install-completion")
    assert done.returncode == 2
    assert "tcsh" in done.stderr
    assert "zsh" in done.stderr
