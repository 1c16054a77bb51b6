"""The recipes of CONTRIBUTING.md, applied to a copy of the package."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import vitreous
from images import encoded, smooth
from live_server import process

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]

OTHER_OPTIONS = '''
@dataclass(frozen=True)
class Squared:
    """Linear, squared ReLU, linear."""


@dataclass(frozen=True)
class Softest:
    """Patches weighted by their norm."""


@dataclass(frozen=True)
class Prototypes:
    """One vector per class, compared by cosine."""


'''
MLP = """
class SquaredMlp(nn.Module):
    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def hidden(self, tokens):
        return self.up(tokens).relu().square()

    def forward(self, tokens):
        return self.down(self.hidden(tokens))


"""
POOL = """

class SoftestPooling(nn.Module):
    def forward(self, features):
        return self.with_weights(features, self.weights(features))

    def weights(self, features):
        tokens = all_tokens(features)
        return tokens.norm(dim=-1).softmax(dim=-1)[:, None]

    def with_weights(self, features, weights):
        return (weights @ all_tokens(features))[:, 0]
"""
HEAD = """

class PrototypeHead(nn.Module):
    def __init__(self, width: int, num_classes: int):
        super().__init__()
        self.prototypes = nn.Parameter(torch.randn(num_classes, width))
        self.scale = nn.Parameter(torch.tensor([5.0]))

    def forward(self, pooled):
        return self.scale * F.cosine_similarity(pooled[:, None], self.prototypes, dim=-1)
"""
MLP_CASE = """
        case options.Squared():
            return SquaredMlp(config.width, config.mlp_width)
"""
POOL_CASE = """
        case options.Softest():
            return SoftestPooling()
"""
HEAD_CASE = """
        case Prototypes():
            return PrototypeHead(width, num_classes)
"""
COMMANDS = """
import sys

from vitreous.cli.main import main

for line in open(sys.argv[1]).read().split("\\n\\n"):
    sys.argv = ["vitreous", *line.split("\\n")]
    print("$", *sys.argv, flush=True)
    try:
        main()
    except SystemExit as end:
        if end.code not in (None, 0, INTERRUPTED):
            raise
"""
INTERRUPT = """
import signal

from vitreous.training.progress import Monitor

add, INTERRUPTED = Monitor.add, 143


def interrupt(self, *step):
    add(self, *step)
    Monitor.add = add
    signal.raise_signal(signal.SIGTERM)


Monitor.add = interrupt
"""
KNOWN_LABELS = """
import torch

import vitreous

model = vitreous.load(sys.argv[-1])
before, labels = model.head.prototypes.data.clone(), model.config.labels
model.replace_head(4, (labels[7], "new", labels[2], labels[5]))
assert torch.equal(model.head.prototypes[[0, 2, 3]], before[[7, 2, 5]])
"""


def edit(file: Path, *changes: tuple[str, str]) -> None:
    text = file.read_text()
    for old, new in changes:
        assert text.count(old) == 1, (file, old)
        text = text.replace(old, new)
    file.write_text(text)


def recipe(title: str) -> list[tuple[str, str]]:
    """Return the python and diff blocks in a section of CONTRIBUTING.md."""
    section = re.split(r"^### ", (ROOT / "CONTRIBUTING.md").read_text(), flags=re.MULTILINE)
    [text] = [text for text in section if text.startswith(f"{title}\n")]
    return re.findall(r"```(python|diff)\n(.*?)```", text, re.DOTALL)


def apply(tree: Path, title: str) -> str:
    """Apply a recipe; return its code blocks that have no file name, to be run afterwards."""
    script = ""
    for kind, block in recipe(title):
        first, _, rest = block.partition("\n")
        if kind == "diff":
            file = tree / first.removeprefix("+++ ")
            for hunk in rest.split("@@\n"):
                lines = hunk.splitlines()
                old, new = ("".join(f"{line[1:]}\n" for line in lines if line[:1] != without) for without in ("+", "-"))
                edit(file, (old, new))
        elif not first.startswith("# "):
            script += block
        else:
            name, _, place = first.removeprefix("# ").partition(", ")
            file = tree / name
            assert file.exists() == bool(place), file
            if place == "at the end":
                file.write_text(f"{file.read_text()}\n\n{rest}")
            elif place:
                anchor = f"\n{place.removeprefix('before ')} = "
                edit(file, (anchor, f"\n{rest}\n{anchor}"))
            else:
                file.write_text(rest)
    return script


RECIPES = ("Add a position embedding", "Add a checkpoint format", "Add a task", "Add a model family")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the package, apply all recipes, and add an MLP, pooling and head; examples.py has the examples."""
    tree = tmp_path_factory.mktemp("extended")
    package = Path(vitreous.__file__).parent
    model = shutil.copytree(package, tree / "vitreous", ignore=shutil.ignore_patterns("__pycache__")) / "model"
    (tree / "examples.py").write_text("\n".join(apply(tree, title) for title in RECIPES))
    edit(
        model / "options.py",
        ("MlpConfig = Gelu |", f"{OTHER_OPTIONS}MlpConfig = Gelu | Squared |"),
        ("PoolConfig = ClassToken |", "PoolConfig = ClassToken | Softest |"),
        ("HeadConfig = LinearHead |", "HeadConfig = LinearHead | Prototypes |"),
    )
    with open(model / "pooling.py", "a") as file:
        file.write(POOL)
    with open(model / "heads.py", "a") as file:
        file.write(HEAD)
    edit(model / "block.py", ("Mlp = GeluMlp |", f"{MLP}Mlp = SquaredMlp | GeluMlp |"))
    edit(
        model / "heads.py",
        ("from torch import nn\n", "import torch.nn.functional as F\nfrom torch import nn\n"),
        ("HeadConfig, LinearHead,", "HeadConfig, LinearHead, Prototypes,"),
        ("    match head:\n", f"    match head:\n{HEAD_CASE}"),
    )
    edit(
        model / "build.py",
        ("    match config.mlp:\n", f"    match config.mlp:\n{MLP_CASE}"),
        ("    match config.pool:\n", f"    match config.pool:\n{POOL_CASE}"),
        ("SwiGluMlp\n", "SquaredMlp, SwiGluMlp\n"),
        ("ClassTokenPooling, Pooling\n", "ClassTokenPooling, Pooling, SoftestPooling\n"),
    )
    return tree


PARTS = [
    'position={"kind": "DistanceBias", "slope": 0.2}', 'mlp={"kind": "Squared"}', 'pool={"kind": "Softest"}',
    'head={"kind": "Prototypes"}',
]  # fmt: skip


def run(
    tree: Path, folder: Path, commands: list[list[str]], afterwards: str = "", before: str = "INTERRUPTED = 0"
) -> dict[str, str]:
    """Run commands of the extended package in one process; return the environment for further processes."""
    script, list_ = folder / "commands.py", folder / "commands"
    script.write_text(f"{before}\n{COMMANDS}\n{afterwards}")
    list_.write_text("\n\n".join("\n".join(words) for words in commands))
    environment = {"PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, str(script), str(list_)], env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    return environment


USUAL = ["--data", "digits", "--batch-size", "64", "--workers", "0", "--device", "cpu", "--steps", "2"]


def test_a_new_family_needs_no_change_elsewhere(tree: Path, tmp_path: Path) -> None:
    image, best = encoded(smooth(20, 20)), str(tmp_path / "run" / "best")
    (tmp_path / "cat.png").write_bytes(image)
    environment = run(
        tree,
        tmp_path,
        [
            ["info", "ConvNet"],
            ["train", *USUAL, "--model", "ConvNet", "--image-size", "8", "--out", str(tmp_path / "run")],
            ["info", best],
            ["info", best, "--json"],
            ["eval", best, "--data", "digits", "--device", "cpu"],
            ["eval", best, "--data", "digits", "--device", "cpu", "--probe", "knn"],
            ["predict", best, str(tmp_path / "cat.png"), "--device", "cpu"],
            ["embed", best, str(tmp_path / "cat.png"), "--out", str(tmp_path / "x.parquet"), "--device", "cpu"],
            ["convert", best, str(tmp_path / "copy"), "--to", "vitreous"],
            ["train", *USUAL, "--image-size", "16", "--out", str(tmp_path / "more"), "--init", best],
        ],
    )
    card = (tmp_path / "run" / "best" / "README.md").read_text()
    assert '"convnet"' in card
    assert "ConvNet" in card
    with process([Path(best)], **environment) as live:
        [about] = live.request("GET", "/v1/model").json["models"]
        assert about["architecture"] == "ConvNet"
        assert about["task"] == "classify"
        assert live.request("POST", "/v1/classify", image).status == 200
        assert live.request("POST", "/v1/embed", image).json["width"] == 64
        assert live.request("POST", "/v1/explain?method=rollout", image).status == 409


def test_new_parts_work_in_every_command(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "cat.png").write_bytes(encoded(smooth(20, 20)))
    small = ["patch_size=4", "width=32", "num_heads=2", "mlp_width=64", "depth=2"]
    best = str(tmp_path / "run" / "best")
    commands = [
        ["train", *USUAL, "--model", "ViT-Lite-6/4", "--image-size", "8", "--set", *small, *PARTS, "--out",
         str(tmp_path / "run")],
        ["eval", best, "--data", "digits", "--device", "cpu"],
        ["eval", best, "--data", "digits", "--device", "cpu", "--probe", "knn"],
        ["explain", best, str(tmp_path / "cat.png"), "--out", str(tmp_path / "explained"), "--device", "cpu"],
        ["predict", best, str(tmp_path / "cat.png"), "--device", "cpu"],
        ["embed", best, str(tmp_path / "cat.png"), "--out", str(tmp_path / "x.parquet"), "--device", "cpu"],
        ["info", best],
        ["info", best, "--json"],
        ["train", *USUAL, "--image-size", "16", "--out", str(tmp_path / "more"), "--init", best],
    ]  # fmt: skip
    environment = run(tree, tmp_path, commands, KNOWN_LABELS)
    assert (tmp_path / "explained").exists()
    with process([Path(best)], **environment) as live:
        [about] = live.request("GET", "/v1/model").json["models"]
        assert about["position"] == "distance bias"
        image = encoded(smooth(20, 20))
        assert live.request("POST", "/v1/classify", image).status == 200
        assert live.request("POST", "/v1/embed", image).json["width"] == 32
        for method in ("relevance", "rollout", "attention", "occlusion"):
            assert live.request("POST", f"/v1/explain?method={method}", image).status == 200
        session = live.request("POST", "/v1/images", image).json["id"]
        for path in (
            "walk?patch=3", "lens", "distance", "attention/0", "similarity/1", "map/relevance", "map/occlusion",
            "map/rollout", "map/attention", "map/pca", "faithfulness/relevance",
        ):  # fmt: skip
            assert live.request("GET", f"/v1/images/{session}/{path}").status == 200, path
        shown = live.request("GET", "/v1/position")
        assert shown.status == 200
        assert len(set(shown.body)) > 2  # a bias is scaled to bytes
        assert live.request("GET", "/v1/filters").status == 200


UNEXPECTED = """
import os, warnings

warnings.simplefilter("ignore", vitreous.AssumptionWarning)
exec(open(os.path.join(os.environ["PYTHONPATH"], "examples.py")).read())

import safetensors.torch

tensors = safetensors.torch.load_file(file)
assert "layers.0.qkv.weight" in tensors
for name, changed in (
    ("layers.0.gate.weight", tensors | {"layers.0.gate.weight": torch.zeros(3)}),
    ("layers.1.fc1.bias", {name: tensor for name, tensor in tensors.items() if name != "layers.1.fc1.bias"}),
):
    safetensors.torch.save_file(changed, file)
    try:
        vitreous.load(file)
    except ValueError as error:
        assert name in str(error), error
    else:
        raise AssertionError(name)
"""


def test_the_examples_run_and_a_new_format_rejects_unexpected_and_missing_tensors(tree: Path, tmp_path: Path) -> None:
    run(tree, tmp_path, [["info", "ConvNet"]], f"import vitreous\n{UNEXPECTED}")


ENCODER = [
    "--model",
    "ViT-Lite-6/4",
    "--image-size",
    "8",
    "--set",
    "patch_size=4",
    "width=32",
    "mlp_width=64",
    "depth=1",
]


def test_a_new_task_is_interrupted_resumed_and_probed_on_the_command_line(tree: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    run(
        tree,
        tmp_path,
        [
            ["train", *USUAL, *ENCODER, "--task", "rotate", "--out", out],
            ["train", "--resume", "--out", out],
            ["eval", f"{out}/best", "--data", "digits", "--device", "cpu", "--probe", "knn"],
        ],
        before=INTERRUPT,
    )
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert 0.5 < metrics["loss"] < 3
    assert "Rotate" in (tmp_path / "run" / "report.html").read_text()


def test_a_new_task_needs_no_change_of_the_package(tmp_path: Path) -> None:
    namespace: dict[str, Any] = {}
    exec(next(block for kind, block in recipe("Add a task") if "class Rotate(Task):" in block), namespace)
    small = {"patch_size": 4, "width": 32, "mlp_width": 64, "depth": 1}
    fields = {"model": "ViT-Lite-6/4", "image_size": 8, "overrides": small, "device": "cpu", "workers": 0}
    run = vitreous.train(
        data="digits", task=namespace["Rotate"], out=tmp_path / "run", steps=2, batch_size=64, **fields
    )
    assert run.metrics["count"] == 359
    assert run.model.config.num_classes == 0
