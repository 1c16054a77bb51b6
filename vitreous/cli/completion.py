"""`vitreous --install-completion [bash|zsh|fish]`: writes a completion script with all commands, flags and choices.

The scripts that tyro generates complete no file names after a command. These are also faster: they run no Python.
"""

import os
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from vitreous.common.checks import BadValue
from vitreous.common.text import single_spaced

SHELLS = ("bash", "zsh", "fish")

BASH = """\
# Completion for bash, written by `vitreous --install-completion bash`.
_vitreous() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" verb="${{COMP_WORDS[1]}}" words=""
    if [ "$COMP_CWORD" -eq 1 ]; then
        words="{verbs}"
    else
        case "$verb ${{COMP_WORDS[COMP_CWORD-1]}}" in
{choices}
            *)
                case "$word" in
                    -*)
                        case "$verb" in
{flags}
                        esac ;;
                esac ;;
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o bashdefault -o default -F _vitreous vitreous  # file names if no word matches
"""
ZSH = """\
#compdef vitreous
# Completion for zsh, written by `vitreous --install-completion zsh`.
if (( CURRENT == 2 )); then
    compadd -- {verbs}
    return
fi
case "$words[2] $words[CURRENT-1]" in
{choices}
esac
if [[ "$words[CURRENT]" == -* ]]; then
    case "$words[2]" in
{flags}
    esac
else
    _files
fi
"""


@dataclass(frozen=True)
class Command:
    """Summary and flags of a command, and the choices of its flags. "" stands for its first argument."""

    summary: str
    flags: dict[str, str]  # descriptions by flag
    choices: dict[str, list[str]]

    @classmethod
    def of(cls, function: Callable[..., None], config: tuple[Any, ...]) -> "Command":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # tyro offers no other list of flags
            actions = tyro.extras.get_parser(function, config=config)._actions
        flags = {action.option_strings[-1]: str(action.help) for action in actions if action.option_strings}
        arguments = [action for action in actions if not action.option_strings][:1]
        choices = {
            action.option_strings[-1] if action.option_strings else "": sorted({*action.choices} - {"None"})
            for action in [*arguments, *(action for action in actions if action.option_strings)]
            if action.choices
        }
        return cls((function.__doc__ or "").split("\n")[0], flags, choices)


def install_completion(
    shell: str | None, commands: Mapping[str, Callable[..., None]], config: tuple[Any, ...] = ()
) -> None:
    """Write the script to the user's folder for completions. The default shell is that of the environment."""
    name = shell or Path(os.environ.get("SHELL", "")).name
    if name not in SHELLS:
        raise BadValue(f"shell is {name!r}, but must be {', '.join(SHELLS)}: vitreous --install-completion SHELL")
    path = script_path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script(name, {verb: Command.of(function, config) for verb, function in commands.items()}))
    print(f"wrote {path}")
    print({
        "bash": f"New shells use it. Without the package bash-completion, add to ~/.bashrc: source {path}",
        "zsh": f"Add to ~/.zshrc, before compinit: fpath+=({path.parent})",
        "fish": "New shells use it.",
    }[name])  # fmt: skip


def script_path(shell: str) -> Path:
    """Return the path at which a shell looks for the completion script of the current user."""
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return {
        "bash": data / "bash-completion" / "completions" / "vitreous",
        "zsh": data / "zsh" / "site-functions" / "_vitreous",
        "fish": config / "fish" / "completions" / "vitreous.fish",
    }[shell]


def script(shell: str, commands: Mapping[str, Command]) -> str:
    """Return the completion script for a shell."""
    if shell == "fish":
        return _fish(commands)
    verbs = " ".join(commands)
    # The word before the first argument is the command.
    choices = {
        f"{verb} {flag or verb}": " ".join(words)
        for verb, command in commands.items()
        for flag, words in command.choices.items()
    }
    flags = {verb: " ".join(command.flags) for verb, command in commands.items()}
    if shell == "bash":
        return BASH.format(
            verbs=verbs,
            choices="\n".join(f'            "{key}") words="{words}" ;;' for key, words in choices.items()),
            flags="\n".join(f'                            {verb}) words="{words}" ;;' for verb, words in flags.items()),
        )
    return ZSH.format(
        verbs=verbs,
        choices="\n".join(f'    "{key}") compadd -- {words}; return ;;' for key, words in choices.items()),
        flags="\n".join(f"        {verb}) compadd -- {words} ;;" for verb, words in flags.items()),
    )


def _fish(commands: Mapping[str, Command]) -> str:
    def quoted(text: str) -> str:
        plain = single_spaced(re.split(r"\. (?=[A-Z(])", text)[0], 80)  # the first sentence
        return "'" + plain.replace("\\", "\\\\").replace("'", "\\'") + "'"

    lines = ["# Completion for fish, written by `vitreous --install-completion fish`."]
    for verb, command in commands.items():
        lines.append(f"complete -c vitreous -f -n __fish_use_subcommand -a {verb} -d {quoted(command.summary)}")
        start = f"complete -c vitreous -n '__fish_seen_subcommand_from {verb}'"
        for flag, description in command.flags.items():
            words = f" -x -a '{' '.join(command.choices[flag])}'" if flag in command.choices else ""
            lines.append(f"{start} -l {flag.removeprefix('--')}{words} -d {quoted(description)}")
        if "" in command.choices:
            lines.append(f"{start} -a '{' '.join(command.choices[''])}'")
    return "\n".join(lines) + "\n"
