"""The Dockerfiles, checked without Docker: instructions, user, health check and copied files."""

import ast
import fnmatch
import json
import re
import shlex
from pathlib import Path

import pytest

from vitreous.serving.settings import Settings

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "docker").glob("*.Dockerfile"))
KNOWN = {
    "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "RUN", "USER", "WORKDIR",
}  # fmt: skip


def instructions(path: Path) -> list[tuple[str, str]]:
    """Return the instructions and their arguments, with continued lines joined."""
    lines = [line for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(word, rest) for line in joined.splitlines() for word, _, rest in [line.partition(" ")]]


def ignored(path: str) -> bool:
    """Apply .dockerignore, in which the last matching pattern decides."""
    result = False
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.removeprefix("!").removeprefix("**/")
        parts = path.split("/")
        if not line.startswith("#") and (pattern == parts[0] or any(fnmatch.fnmatch(part, pattern) for part in parts)):
            result = not line.startswith("!")
    return result


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_instructions_are_known_and_the_base_is_small_and_pinned(path: Path) -> None:
    found = instructions(path)
    assert {word for word, _ in found} <= KNOWN
    stages = [rest for word, rest in found if word == "FROM"]
    assert len(stages) == 2
    assert all(re.match(r"python:3\.\d+-slim( AS \w+)?$", stage) for stage in stages)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_last_stage_runs_as_a_user_without_rights_and_is_health_checked(path: Path) -> None:
    found = instructions(path)
    start = max(i for i, (word, _) in enumerate(found) if word == "FROM")
    words = [word for word, _ in found[start:]]
    last = dict(found[start:])
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", last["USER"])
    after = words[words.index("USER") :]
    assert "RUN" not in after
    assert "COPY" not in after
    assert json.loads(last["ENTRYPOINT"]) == ["vitreous"]
    check = json.loads(last["HEALTHCHECK"].split("CMD ", 1)[1])
    assert check[:2] == ["python", "-c"]
    ast.parse(check[2])
    assert f":{Settings.port}/healthz" in check[2]
    assert last["EXPOSE"] == str(Settings.port)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_copied_files_exist_and_are_not_ignored(path: Path) -> None:
    copied = [shlex.split(rest) for word, rest in instructions(path) if word == "COPY"]
    sources = [name for words in copied if not words[0].startswith("--from") for name in words[:-1]]
    assert {"vitreous", "pyproject.toml", "constraints.txt", "README.md", "LICENSE"} <= set(sources)
    for name in sources:
        assert (ROOT / name).exists(), name
        assert not ignored(name), name
    for private in (".git/config", ".venv/bin/python", "runs/first/best/config.json", "tests/conftest.py", "key.env"):
        assert ignored(private)
    assert not ignored("vitreous/page/static/index.html")
    assert ignored("vitreous/cli/__pycache__/main.cpython-311.pyc")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_installed_extras_exist(path: Path) -> None:
    import tomllib

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (names,) = re.findall(r'"\.\[([\w,]+)\]"', path.read_text())
    assert set(names.split(",")) <= set(extras)
