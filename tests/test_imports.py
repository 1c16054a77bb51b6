"""Dependencies point one way, and `--help` is quick because it imports little."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "vitreous"

# From the bottom up; a package may import itself and what stands on a lower line.
LAYERS = [
    {"kernels", "threads", "network", "regular_files", "printable"},
    {"hub_transport", "json_files"},
    {"hub_client"},
    {"model"},
    {"infer", "weights", "data"},
    {"train", "evaluate", "explain", "export"},
    {"serve"},
    {"cli", "info", "demo", "refuse", "__main__", "__init__"},
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
# On one line, in this order: infer uses weights and data, a training run evaluates, and all reports share one look.
BESIDE = {("infer", "weights"), ("infer", "data"), ("train", "evaluate"), ("explain", "train")}

FILES = sorted(ROOT.rglob("*.py"))


def imported(path: Path) -> set[str]:
    """Every module that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} uses a relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def part(module: str) -> str:
    pieces = module.split(".")
    return (
        pieces[1]
        if (len(pieces) > 1 and (ROOT / pieces[1]).exists()) or (ROOT / f"{pieces[1]}.py").exists()
        else "__init__"
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_downwards(path: Path) -> None:
    here = path.relative_to(ROOT).parts[0].removesuffix(".py")
    if here == "__init__":
        return  # the public face names everything, and imports it only when asked
    for module in imported(path):
        if module.startswith("vitreous."):
            there = part(module)
            allowed = there == here or RANK[there] < RANK[here] or (here, there) in BESIDE
            allowed = allowed or (RANK[there] == RANK[here] == len(LAYERS) - 1)
            assert allowed, f"{path} imports {module}: {here} may not depend on {there}"


@pytest.mark.parametrize("path", sorted((ROOT / "model").glob("*.py")), ids=lambda path: path.name)
def test_the_model_needs_only_torch(path: Path) -> None:
    tops = {module.split(".")[0] for module in imported(path)}
    assert tops <= {"torch", "jaxtyping", "vitreous"} | set(sys.stdlib_module_names)


@pytest.mark.parametrize("arguments", [["-c", "import vitreous, vitreous.cli"], ["-m", "vitreous", "--help"]], ids=str)
def test_help_does_not_import_torch(arguments: list[str]) -> None:
    run = subprocess.run([sys.executable, "-X", "importtime", *arguments], capture_output=True, text=True, check=True)
    modules = {line.rsplit("|", 1)[-1].strip() for line in run.stderr.splitlines()}
    assert "vitreous.cli" in modules
    assert not {"torch", "numpy", "jaxtyping", "transformers"} & modules
