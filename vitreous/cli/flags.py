"""Flags that several verbs share, and corrections of the argument list before it is parsed."""

from collections.abc import Sequence
from typing import Annotated

import tyro
from tyro.conf import arg

FLAGS = (tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes)
PLAIN = (*FLAGS, tyro.conf.DisallowNone)  # omit a flag for None

ImageSize = Annotated[tuple[int, ...], arg(metavar="PIXELS | HEIGHT WIDTH")]


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
