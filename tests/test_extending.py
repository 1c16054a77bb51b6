"""The recipes of docs/architecture.md for new parts, followed in a copy of the package: whatever the model is used for
afterwards must work with kinds that nothing but the recipe knows."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import vitreous
from images import encoded, smooth
from live_server import process

ROOT = Path(__file__).parents[1]

OTHER_OPTIONS = '''
@dataclass(frozen=True)
class Squared:
    """Linear, squared ReLU, linear."""


@dataclass(frozen=True)
class Softest:
    """The patches with weights that grow with their length."""


@dataclass(frozen=True)
class Prototypes:
    """One vector per class, compared by cosine."""


'''
MLP = """
class SquaredMlp(nn.Module):
    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, tokens):
        return self.down(self.up(tokens).relu().square())


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

import torch

import vitreous
from vitreous.cli.main import main

for line in open(sys.argv[1]).read().split("\\n\\n"):
    sys.argv = ["vitreous", *line.split("\\n")]
    print("$", *sys.argv, flush=True)
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise

from vitreous.model.build import replace_head

model = vitreous.load(sys.argv[-1])
before, labels = model.head.prototypes.data.clone(), model.config.labels
replace_head(model, 4, (labels[7], "new", labels[2], labels[5]))
assert torch.equal(model.head.prototypes[[0, 2, 3]], before[[7, 2, 5]])
"""


def edit(file: Path, *changes: tuple[str, str]) -> None:
    text = file.read_text()
    for old, new in changes:
        assert text.count(old) == 1, (file, old)
        text = text.replace(old, new)
    file.write_text(text)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package with a new kind of position, as the documentation has it, and with a new MLP, pooling and head."""
    tree = tmp_path_factory.mktemp("extended")
    package = Path(vitreous.__file__).parent
    model = shutil.copytree(package, tree / "vitreous", ignore=shutil.ignore_patterns("__pycache__")) / "model"
    recipe = (
        (ROOT / "docs" / "architecture.md").read_text().partition("## Swapping a part")[2].partition("That is all")[0]
    )
    option, module = re.findall(r"```python\n(.*?)```", recipe, re.DOTALL)
    [case] = re.findall(r"```diff\n(.*?)```", recipe, re.DOTALL)
    case = re.sub(r"^\+", "", case, flags=re.MULTILINE)
    assert "class DistanceBias:" in option
    assert "class DistanceBiasPosition(PositionEmbedding):" in module
    edit(
        model / "options.py",
        ("PositionConfig = Learned1d |", f"{option}\n\n{OTHER_OPTIONS}PositionConfig = DistanceBias | Learned1d |"),
        ("Mlp = Gelu |", "Mlp = Gelu | Squared |"),
        ("Pool = ClassToken |", "Pool = ClassToken | Softest |"),
        ("Head = LinearHead |", "Head = LinearHead | Prototypes |"),
    )
    with open(model / "position.py", "a") as file:
        file.write(f"\n\n{module}")
    with open(model / "pooling.py", "a") as file:
        file.write(POOL)
    with open(model / "heads.py", "a") as file:
        file.write(HEAD)
    edit(model / "block.py", ("Mlp = GeluMlp |", f"{MLP}Mlp = SquaredMlp | GeluMlp |"))
    edit(
        model / "heads.py",
        ("from torch import nn\n", "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n"),
        ("Head, LinearHead,", "Head, LinearHead, Prototypes,"),
        ("    match head:\n", f"    match head:\n{HEAD_CASE}"),
    )
    edit(
        model / "build.py",
        ("    match config.position:\n", f"    match config.position:\n{case}"),
        ("    match config.mlp:\n", f"    match config.mlp:\n{MLP_CASE}"),
        ("    match config.pool:\n", f"    match config.pool:\n{POOL_CASE}"),
        ("SwiGluMlp\n", "SquaredMlp, SwiGluMlp\n"),
        ("ClassTokenPooling\n", "ClassTokenPooling, SoftestPooling\n"),
    )
    return tree


PARTS = [
    'position={"kind": "DistanceBias", "slope": 0.2}', 'mlp={"kind": "Squared"}', 'pool={"kind": "Softest"}',
    'head={"kind": "Prototypes"}',
]  # fmt: skip


def test_new_kinds_survive_everything(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "cat.png").write_bytes(encoded(smooth(20, 20)))
    small = ["patch_size=4", "width=32", "num_heads=2", "mlp_width=64", "depth=2"]
    usual = ["--data", "digits", "--batch-size", "64", "--workers", "0", "--device", "cpu", "--steps", "2"]
    best = str(tmp_path / "run" / "best")
    commands = [
        ["train", *usual, "--model", "ViT-Lite-6/4", "--image-size", "8", "--set", *small, *PARTS, "--out",
         str(tmp_path / "run")],
        ["eval", best, "--data", "digits", "--device", "cpu"],
        ["eval", best, "--data", "digits", "--device", "cpu", "--probe", "knn"],
        ["explain", best, str(tmp_path / "cat.png"), "--out", str(tmp_path / "explained"), "--device", "cpu"],
        ["predict", best, str(tmp_path / "cat.png"), "--device", "cpu"],
        ["embed", best, str(tmp_path / "cat.png"), "--out", str(tmp_path / "x.parquet"), "--device", "cpu"],
        ["info", best],
        ["info", best, "--json"],
        ["train", *usual, "--image-size", "16", "--out", str(tmp_path / "more"), "--init", best],
    ]  # fmt: skip
    script, list_ = tmp_path / "commands.py", tmp_path / "commands"
    script.write_text(COMMANDS)
    list_.write_text("\n\n".join("\n".join(words) for words in commands))
    environment = {"PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, str(script), str(list_)], env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    assert (tmp_path / "explained").exists()
    with process([Path(best)], **environment) as live:
        [about] = live.ask("GET", "/v1/model").json["models"]
        assert about["position"] == "distance bias"
        picture = encoded(smooth(20, 20))
        assert live.ask("POST", "/v1/classify", picture).status == 200
        assert live.ask("POST", "/v1/embed", picture).json["width"] == 32
        for method in ("relevance", "rollout", "attention", "occlusion"):
            assert live.ask("POST", f"/v1/explain?method={method}", picture).status == 200
        image = live.ask("POST", "/v1/images", picture).json["id"]
        for path in (
            "tour", "lens", "distance", "attention/0", "similarity/1", "map/relevance", "map/occlusion", "map/rollout",
            "map/attention", "map/pca", "faithfulness/relevance",
        ):  # fmt: skip
            assert live.ask("GET", f"/v1/images/{image}/{path}").status == 200, path
        shown = live.ask("GET", "/v1/position")
        assert shown.status == 200
        assert len(set(shown.body)) > 2  # a bias is scaled to what bytes can hold
        assert live.ask("GET", "/v1/filters").status == 200
