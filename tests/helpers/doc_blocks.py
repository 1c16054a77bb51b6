"""The code blocks of the documentation. `python tests/helpers/doc_blocks.py` counts them, with pages and pictures.

A comment before a block states why it is not executed: `<!-- needs: GPU -->`, network, server, ... The site shows it.
"""

import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^( *)(?:<!-- needs: ([\w ,]+) -->\n *)?```(\w+)[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    path: Path
    needs: str
    """What the block needs besides Vitreous, or an empty string."""
    language: str
    text: str

    def commands(self) -> Iterator[list[str]]:
        """Yield the words of each command of a shell block, without variables before it."""
        for line in self.text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            while words and re.match(r"\w+=", words[0]):
                words = words[1:] if "$(" not in words[0] else []
            if words:
                yield words[:-1] if words[-1] == "&" else words


def blocks(path: Path) -> list[Block]:
    found = FENCE.findall(path.read_text(encoding="utf-8"))
    return [Block(path, needs, language, textwrap.dedent(text)) for _, needs, language, text in found]


def pages(language: str = "en") -> list[Path]:
    readme = "README.md" if language == "en" else "README.zh-CN.md"
    return [ROOT / readme, *sorted((ROOT / "docs" / language).rglob("*.md"))]


def is_tutorial(path: Path) -> bool:
    """Return True for pages whose commands run, too."""
    return path.parent.name == "tutorials" or path.name == "faq.md"


def arguments(words: list[str]) -> list[str] | None:
    """Return the arguments of `vitreous` in a command that runs it, also in a container or on many GPUs."""
    if words[0] == "vitreous":
        return words[1:]
    starts = [i for i, word in enumerate(words) if word in ("vitreous", "vitreous:cuda")]
    if starts and (words[0] == "torchrun" or words[:2] == ["docker", "run"]):
        return words[starts[0] + 1 :]
    return None


def count() -> None:
    """Print the number of pages, pictures, notebooks and examples. Chinese pages have the same code as English ones."""
    for language in ("en", "zh"):
        found = [block for path in pages(language) for block in blocks(path)]
        python = [block for block in found if block.language == "python" and not block.needs]
        shell = [block for block in found if block.language in ("bash", "sh")]
        commands = [(block, words) for block in shell for words in block.commands() if arguments(words) is not None]
        run = [words for block, words in commands if is_tutorial(block.path) and not block.needs]
        pictures = {name for path in pages(language) for name in re.findall(r"!\[[^]]*\]\(([^)]+)\)", path.read_text())}
        print(
            f"{language}: {len(pages(language)) - 1} pages, {len({Path(name).name for name in pictures})} pictures, "
            f"{len(python)} Python blocks that run, {len(commands)} vitreous commands that are parsed, "
            f"{len(run)} of them run; {sum(bool(block.needs) for block in found)} blocks marked as needing more"
        )
    print(f"{len(list((ROOT / 'docs').rglob('*.ipynb')))} notebooks")


if __name__ == "__main__":
    count()
