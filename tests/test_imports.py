"""Imports between packages go in one direction without cycles, and `--help` does not import torch."""

import ast
import functools
import importlib
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "vitreous"

# From bottom to top. A package may import packages from earlier lines, and those to its left on its own line.
LAYERS = [
    ["common"],
    ["kernels", "model", "runtimes"],
    ["weights", "data"],
    ["report", "inference", "tasks"],
    ["explanation", "evaluation", "training", "page", "exporting", "cluster", "benchmarking"],
    ["serving"],
    ["cli", "__init__", "__main__"],
]
RANK = {package: (line, place) for line, row in enumerate(LAYERS) for place, package in enumerate(row)}

MODULES = {
    ".".join(("vitreous", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
}


@functools.cache
def imports(module: str) -> set[tuple[str, str]]:
    """Return the (module, name) pairs that a module imports from this package; name is "" for a whole module."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            found |= {(alias.name, "") for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} uses a relative import"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.add((full, "") if full in MODULES else (str(node.module), alias.name))
    return {(target, name) for target, name in found if target.split(".")[0] == "vitreous"}


def package(module: str) -> str:
    """Return the top-level package of a module, e.g. weights for vitreous.weights.io.npz."""
    return module.split(".")[1] if "." in module else "__init__"


def test_packages_depend_only_on_lower_packages(capsys: pytest.CaptureFixture[str]) -> None:
    edges = defaultdict(set)
    for module in MODULES.keys() - {"vitreous"}:  # re-exports everything, lazily
        for target, _ in imports(module) - {("vitreous", "")}:
            edges[package(module)].add(package(target))
    with capsys.disabled():
        print()
        for name in sorted(edges, key=lambda name: RANK[name]):
            print(f"  {name:12} -> {', '.join(sorted(edges[name] - {name}, key=lambda other: RANK[other])) or '-'}")
    wrong = [f"{a} -> {b}" for a in edges for b in edges[a] if a != b and RANK[b] >= RANK[a]]
    wrong.remove("__main__ -> cli") if "__main__ -> cli" in wrong else None
    assert not wrong


def test_no_import_cycle_even_through_lazy_imports() -> None:
    graph = {module: {target for target, _ in imports(module) if target != "vitreous"} for module in MODULES}
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join((*path[path.index(module) :], module))
        if module not in done:
            for target in sorted(graph.get(module, ())):
                visit(target, (*path, module))
            done.add(module)

    for module in graph.keys() - {"vitreous"}:
        visit(module, ())


def test_no_private_name_is_imported_across_packages() -> None:
    crossing = [
        f"{module} imports {target}.{name}"
        for module in MODULES
        for target, name in imports(module)
        if package(target) != package(module) and any(part.startswith("_") for part in [*target.split("."), name])
    ]
    assert not crossing


@pytest.mark.parametrize("path", sorted((ROOT / "model").glob("*.py")), ids=lambda path: path.name)
def test_the_model_needs_only_torch(path: Path) -> None:
    tree = ast.walk(ast.parse(path.read_text()))
    tops = {alias.name.split(".")[0] for node in tree if isinstance(node, ast.Import) for alias in node.names}
    tree = ast.walk(ast.parse(path.read_text()))
    tops |= {str(node.module).split(".")[0] for node in tree if isinstance(node, ast.ImportFrom)}
    assert tops <= {"torch", "jaxtyping", "vitreous"} | set(sys.stdlib_module_names)


COMMANDS = [
    ["-c", "import vitreous, vitreous.cli.main"],
    ["-m", "vitreous", "--help"],
    ["-m", "vitreous", "info", "--pretrained"],
]


@pytest.mark.parametrize("arguments", COMMANDS, ids=str)
def test_help_does_not_import_torch(arguments: list[str]) -> None:
    run = subprocess.run([sys.executable, "-X", "importtime", *arguments], capture_output=True, text=True, check=True)
    modules = {line.rsplit("|", 1)[-1].strip() for line in run.stderr.splitlines()}
    assert "vitreous.cli.main" in modules
    assert not {"torch", "numpy", "jaxtyping", "transformers"} & modules


FACES = [module for module, path in MODULES.items() if path.name == "__init__.py"]


@pytest.mark.parametrize("face", [face for face in FACES if "_HOMES" in MODULES[face].read_text()])
def test_lazy_names_are_listed_once_for_mypy_and_once_for_imports(face: str) -> None:
    """The package imports lazily from `_HOMES`; mypy reads the block under TYPE_CHECKING."""
    tree = ast.parse(MODULES[face].read_text())
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    typed = {
        name.name: node.module for node in blocks[0].body if isinstance(node, ast.ImportFrom) for name in node.names
    }
    module = importlib.import_module(face)
    assert typed == module._HOMES
    assert set(module.__all__) <= set(dir(module))
    with pytest.raises(AttributeError, match=f"{face}.*nonsense"):
        getattr(module, "nonsense")  # noqa: B009


@pytest.mark.parametrize("face", FACES)
def test_packages_describe_themselves_and_export_existing_names(face: str) -> None:
    module = importlib.import_module(face)
    assert module.__doc__
    for name in getattr(module, "__all__", ()):
        assert f"{face}.{name}" not in MODULES, "a module hides the name as soon as it is imported"
        assert getattr(module, name) is not None
