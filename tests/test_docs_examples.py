"""The examples in the documentation work: Python blocks run, commands are accepted, links lead somewhere.

The tutorials run completely, Python and shell in the order of the page, on small images and with shortened training.
"""

import functools
import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw

import vitreous
from command_line import CommandLine
from doc_blocks import ROOT, Block, arguments, blocks, is_tutorial, pages
from live_server import in_thread
from optional_imports import import_transformers
from vitreous.cli import main
from vitreous.serving.models import serve_model
from vitreous.training import run

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
TARGETS = re.findall(r"^(\w[\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
OTHER_PROGRAMS = {"cd", "curl", "docker", "export", "hf", "kubectl", "mkdir", "ray", "rattler-build", "sbatch", "unzip"}
TUTORIALS = [path for path in pages() if is_tutorial(path)]
PYTHON = [path for path in pages() if path not in TUTORIALS and any(b.language == "python" for b in blocks(path))]
SHELL = [block for path in pages() for block in blocks(path) if block.language in ("bash", "sh")]


@pytest.mark.slow
@pytest.mark.parametrize("path", PYTHON, ids=lambda path: path.name)
def test_python_examples_run(path: Path) -> None:
    namespace: dict[str, object] = {}
    for block in blocks(path):
        if block.language == "python" and not block.needs:
            execute(block, namespace)


@pytest.mark.parametrize(
    "block", SHELL, ids=lambda block: f"{block.path.name}: {block.text.split('#')[0].strip()[:40]}"
)
def test_commands_are_accepted(block: Block, monkeypatch: pytest.MonkeyPatch, command: CommandLine) -> None:
    called: list[str] = []
    monkeypatch.setattr(main, "COMMANDS", {name: parser_only(name, called) for name in main.COMMANDS})
    for words in block.commands():
        given = arguments(words)
        if given is not None:
            done = command(*given)
            assert done.returncode == 0, done.stderr
            assert called.pop() == given[0]
        elif words[0] == "make":
            assert set(words[1:]) <= set(TARGETS)
        elif "pip" in words[:3] or "-m" in words:
            check_module(words)
        else:
            assert words[0] in OTHER_PROGRAMS or "python" in words[0], words


def parser_only(name: str, called: list[str]) -> Any:
    """Return a command with the same arguments that only checks them, and adds its name to `called`."""

    @functools.wraps(main.COMMANDS[name])
    def check(*values: Any, **named: Any) -> None:
        called.append(name)
        if name == "train":
            (flags,) = [*values, *named.values()]
            flags.config()

    return check


def check_module(words: list[str]) -> None:
    """Check the module of `python -m`, and the extras of `pip install`."""
    if "pip" in words[:3]:
        for extras in re.findall(r"vitreous\[([\w,]+)\]", " ".join(words)):
            assert set(extras.split(",")) <= set(EXTRAS), extras
    else:
        module = words[words.index("-m") + 1]
        assert module in ("build", "torture") or importlib.util.find_spec(module), module


# ---- Tutorials -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_tutorials_run(path: Path, sample_data: Path, monkeypatch: pytest.MonkeyPatch, command: CommandLine) -> None:
    if path.stem == "train":  # trains the run that the other tutorials use
        shutil.rmtree(sample_data / "runs" / "first")
    if path.stem == "convert":
        import_transformers()
    monkeypatch.chdir(sample_data)
    monkeypatch.setattr(run, "_checked", shortened(run._checked))
    namespace: dict[str, object] = {}
    for block in blocks(path):
        if block.language == "python" and not block.needs:
            execute(block, namespace)
        if block.language == "bash" and not block.needs:
            for words in block.commands():
                if words[0] == "vitreous":
                    done = command(*words[1:])
                    assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"


@pytest.mark.slow
def test_clients_get_an_answer(sample_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(sample_data)
    clients = [one for one in blocks(ROOT / "docs/en/tutorials/serve.md") if one.needs == "a running server"]
    assert [one.language for one in clients] == ["bash", "python", "js"]
    programs = {"bash": ["bash", "-c"], "python": [sys.executable, "-c"], "js": ["node", "--input-type=module", "-e"]}
    with in_thread([serve_model(vitreous.load("runs/first/best"), id="first", device="cpu")]) as live:
        for client in clients:
            program = programs[client.language]
            if shutil.which(program[0]) and (client.language != "bash" or shutil.which("curl")):
                text = client.text.replace(":8000", f":{live.port}")
                done = subprocess.run([*program, text], capture_output=True, text=True)
                assert any(label in done.stdout for label in ("circle", "square", "both")), done.stderr


def shortened(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Make a run take about a second: few steps and, unless it starts from a checkpoint, a tiny model."""

    def short(config: Any) -> Any:
        if config.resume or config.train_only == "lda":
            return check(config)
        if config.init is None:
            config = replace(config, model="ViT-Lite-6/4", image_size=(16, 16), overrides={"depth": 1, "width": 64})
        return check(replace(config, epochs=None, steps=2, batch_size=8, workers=0, device="cpu"))

    return short


@pytest.fixture
def sample_data(originals: Path, tmp_path: Path) -> Path:
    return shutil.copytree(originals, tmp_path / "work")


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the data that the tutorials name. The folder dinov2-s takes precedence over the published weights."""
    folder = tmp_path_factory.mktemp("tutorials")
    rng = np.random.default_rng(0)
    for name, shape in (("circle", "ellipse"), ("square", "rectangle"), ("both", "")):
        for kind in ("pictures", "more"):
            (folder / kind / name).mkdir(parents=True)
            for i in range(10 if kind == "pictures" else 5):
                draw_shape(rng, shape)[0].save(folder / kind / name / f"{kind}-{i}.png")
    for i in range(12):
        image, mask = draw_shape(rng, "ellipse")
        for kind, picture in (("images", image), ("masks", mask)):
            (folder / "masked" / kind).mkdir(parents=True, exist_ok=True)
            picture.save(folder / "masked" / kind / f"{i}.png")
    (folder / "masked" / "classes.txt").write_text("0 background\n1 shape\n")
    (folder / "unlabelled").mkdir()
    for i in range(60):
        draw_shape(rng, "")[0].save(folder / "unlabelled" / f"{i}.png")
    draw_shape(rng, "ellipse")[0].resize((64, 48)).save(folder / "cat.jpg")
    tiny = {"depth": 2, "width": 48, "num_heads": 3, "mlp_width": 96}
    vitreous.save(vitreous.create("DINOv2-S/14", image_size=28, overrides=tiny), folder / "dinov2-s")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "_checked", shortened(run._checked))
        vitreous.train(data=folder / "pictures", out=folder / "runs" / "first")
    return folder


def draw_shape(rng: np.random.Generator, shape: str) -> tuple[Image.Image, Image.Image]:
    """Return an image of a circle, a square or both on noise, and its mask."""
    image = Image.fromarray(rng.integers(0, 100, (32, 32, 3), dtype=np.uint8))
    mask = Image.new("L", image.size)
    left, top = rng.integers(1, 12, 2).tolist()
    for one in [shape] if shape else ["ellipse", "rectangle"]:
        for picture, colour in ((image, (250, 200, 90)), (mask, 1)):
            getattr(ImageDraw.Draw(picture), one)((left, top, left + 16, top + 16), fill=colour)
    return image, mask


def execute(block: Block, namespace: dict[str, object]) -> None:
    line = block.path.read_text().partition(block.text)[0].count("\n")
    exec(compile("\n" * line + block.text, str(block.path), "exec"), namespace)


# ---- Links and translations ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")], ids=lambda path: path.name)
def test_links_lead_to_files_and_headings(path: Path) -> None:
    for target in re.findall(r"\]\(([^):]+)\)", path.read_text()):
        name, _, heading = target.partition("#")
        file = path.parent / name if name else path
        if heading or not file.exists():  # translations have the anchors of the English page; it replaces missing ones
            file = Path(str(file).replace("/docs/zh/", "/docs/en/"))
        assert file.exists(), target
        if re.fullmatch(r"L\d+(-L\d+)?", heading):
            last = int(heading.rpartition("L")[2])
            assert last <= len(file.read_text().splitlines()), target
            continue
        if file.suffix == ".py":  # a Python name, which test_paper_pages.py checks
            continue
        titles = re.findall(r"^#+ (.*)", file.read_text(), re.MULTILINE) if heading else []
        anchors = [re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles]
        assert not heading or heading in anchors, target


@pytest.mark.parametrize("path", pages("zh"), ids=lambda path: path.name)
def test_a_translation_has_the_same_code(path: Path) -> None:
    english = (
        ROOT / "README.md" if path.name == "README.zh-CN.md" else ROOT / "docs/en" / path.relative_to(ROOT / "docs/zh")
    )

    def code(document: Path) -> list[tuple[str, str]]:
        return [(one.needs, re.sub(r"\s*#.*", "", one.text)) for one in blocks(document) if one.language != "json"]

    def levels(document: Path) -> list[int]:
        text = re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        return [len(marks) for marks in re.findall(r"^(#+) ", text, re.MULTILINE)]

    assert code(path) == code(english)
    assert levels(path) == levels(english)  # headings have the anchors of the English page
