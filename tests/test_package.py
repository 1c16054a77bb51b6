"""The source distribution and the wheel: contents, metadata, and the demo without the repository."""

import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import vitreous

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SOURCES = ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "constraints.txt")
UNPINNED = {"pillow-heif", "trackio"}  # not installed by `make setup`


def build(source: Path, out: Path, *kinds: str) -> None:
    """Build without a network: setuptools is installed."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), *kinds, str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Source distribution, the wheel built from it in `dist/`, and a wheel built from a repository in `direct/`."""
    root = tmp_path_factory.mktemp("package")
    source = root / "repository"
    source.mkdir()
    for name in SOURCES:
        shutil.copy(ROOT / name, source)
    for name in ("vitreous", "tests", "benchmarks", "recipes"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    (source / "runs").mkdir()
    for stray in ("runs/private.txt", "vitreous/notes.orig", "vitreous/page/static/.DS_Store", "secret.env"):
        (source / stray).write_text("stray")
    build(source, root / "dist")
    build(source, root / "direct", "--wheel")
    return root


def wheel(folder: Path) -> zipfile.ZipFile:
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def metadata(folder: Path) -> email.message.Message:
    with wheel(folder) as archive:
        return email.message_from_bytes(archive.read(f"vitreous-{vitreous.__version__}.dist-info/METADATA"))


@pytest.mark.slow
def test_wheel_has_exactly_the_files_of_the_package(dist: Path) -> None:
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / "vitreous").rglob("*") if path.is_file()}
    expected = {name for name in files if "__pycache__" not in name and not name.endswith((".pyc", ".DS_Store"))}
    with wheel(dist / "dist") as archive:
        names = set(archive.namelist())
    inside = {name for name in names if not name.startswith("vitreous-")}
    assert inside == expected
    assert {"vitreous/py.typed", "vitreous/report/report.css", "vitreous/page/static/index.html"} < inside
    assert f"vitreous-{vitreous.__version__}.dist-info/licenses/LICENSE" in names


@pytest.mark.slow
def test_source_distribution_has_no_tests_and_rebuilds_the_same_wheel(dist: Path) -> None:
    (path,) = (dist / "dist").glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = [name.split("/", 1)[1] for name in archive.getnames() if "/" in name]
    tops = {name.split("/")[0] for name in names}
    assert tops == {*SOURCES, "vitreous", "vitreous.egg-info", "PKG-INFO", "setup.cfg"}
    with wheel(dist / "dist") as rebuilt, wheel(dist / "direct") as direct:
        assert rebuilt.namelist() == direct.namelist()
        for name in direct.namelist():
            assert rebuilt.read(name) == direct.read(name), name


@pytest.mark.slow
def test_metadata_is_complete(dist: Path) -> None:
    found = metadata(dist / "dist")
    assert found["Version"] == vitreous.__version__
    assert found["License-Expression"] == "Apache-2.0"
    assert found["Requires-Python"] == ">=3.11"
    assert found["Description-Content-Type"] == "text/markdown"
    assert found["Summary"]
    assert "# Vitreous" in str(found.get_payload())
    assert set(found.get_all("Provides-Extra", [])) == set(PROJECT["optional-dependencies"])


@pytest.mark.slow
def test_demo_runs_from_the_wheel_without_the_repository(dist: Path, tmp_path: Path) -> None:
    (path,) = (dist / "dist").glob("*.whl")
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
    subprocess.run([*pip, "--disable-pip-version-check", "--target", str(site), str(path)], check=True)
    one_epoch = (
        "import dataclasses, vitreous; from vitreous.cli import demo, main; usual = demo.config\n"
        "demo.config = lambda out: dataclasses.replace(usual(out), epochs=1)\n"
        "print(vitreous.__file__); main.main()"
    )
    settings = {**os.environ, "PYTHONPATH": str(site), "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", one_epoch, "demo"], cwd=tmp_path, env=settings, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.splitlines()[0]).is_relative_to(site)
    for name in ("report.html", "best/model.safetensors", "explained/report.html"):
        assert (tmp_path / "runs" / "demo" / name).is_file()
    version = subprocess.run(
        [str(site / "bin" / "vitreous"), "--version"], env=settings, capture_output=True, text=True
    )
    assert version.stdout == f"vitreous {vitreous.__version__}\n"


def test_pinned_versions_satisfy_every_requirement() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if not line.startswith("#")]
    versions = {canonicalize_name(pin.name): next(iter(pin.specifier)).version for pin in pins}
    extras = PROJECT["optional-dependencies"]
    for text in [*PROJECT["dependencies"], *(text for extra in extras.values() for text in extra)]:
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        assert name in UNPINNED or requirement.specifier.contains(versions[name]), text


def test_conda_recipe_has_the_requirements_of_the_wheel() -> None:
    yaml = pytest.importorskip("yaml")  # huggingface_hub requires it
    recipe = yaml.safe_load((ROOT / "recipe" / "recipe.yaml").read_text())
    conda_names = {"torch": "pytorch", "matplotlib": "matplotlib-base"}

    def conda(texts: list[str]) -> set[str]:
        found = [Requirement(text) for text in texts]
        return {f"{conda_names.get(one.name, one.name)} {one.specifier}" for one in found}

    extras = PROJECT["optional-dependencies"]
    optional = [text for extra, texts in extras.items() if extra not in ("dev", "docs", "peers") for text in texts]
    needs = recipe["requirements"]
    assert set(needs["run"]) == conda(PROJECT["dependencies"]) | {f"python {PROJECT['requires-python']}"}
    assert set(needs["run_constraints"]) == conda(optional)
    assert recipe["context"]["version"] == vitreous.__version__
    assert recipe["about"]["license"] == PROJECT["license"]
    scripts = {f"{name} = {target}" for name, target in PROJECT["scripts"].items()}
    assert set(recipe["build"]["python"]["entry_points"]) == scripts


def test_changelog_and_citation_name_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(rf"^## \[?{re.escape(vitreous.__version__)}\]?", text, re.MULTILINE)
    assert f"\nversion: {vitreous.__version__}\n" in (ROOT / "CITATION.cff").read_text()
