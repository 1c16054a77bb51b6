"""Results in a folder: complete files, continued runs, and no mixture of two runs."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
import torch

import vitreous
from image_containers import small_images, write_folder, write_parquet, write_tar
from predictors import random_model
from vitreous.inference.predict_images import Job
from vitreous.inference.prediction_files import as_dict
from vitreous.inference.shard_folder import _manifest
from vitreous.model.int8 import Int8Scales
from vitreous.weights.native import set_int8_scales

OPTIONS: dict[str, Any] = {"device": "cpu", "batch_size": 4}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "small"
    vitreous.save(random_model("class token"), path)
    return path


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = write_folder(tmp_path / "set", small_images(23))
    (folder / "0011.png").write_bytes(b"no image")
    return folder


def rows(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of all files, in the order of the shards."""
    return [row for file in sorted(folder.glob("part-*.parquet")) for row in parquet.read_table(file).to_pylist()]


def listed(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


def test_the_files_contain_the_rows_of_a_single_file(model: Path, images: Path, tmp_path: Path) -> None:
    written = vitreous.predict(model, images, **OPTIONS).write(tmp_path / "out", shard_size=5)
    assert (written.images, written.errors, written.shards, written.skipped) == (23, 1, 5, 0)
    assert listed(tmp_path / "out") == {"_manifest.json", *(f"part-{i:05d}-of-00005.parquet" for i in range(5))}
    found, results = rows(tmp_path / "out"), list(vitreous.predict(model, images, **OPTIONS))
    assert [row["path"] for row in found] == [result.name for result in results]
    for row, result in zip(found, results, strict=True):
        assert row["error"] == result.error
        expected = as_dict(result).get("predictions")
        if expected is None:
            assert row["predictions"] is None
            continue
        assert [label["index"] for label in row["predictions"]] == [label["index"] for label in expected]
        assert row["probability"] == pytest.approx(expected[0]["probability"], rel=1e-5)
    assert parquet.read_table(tmp_path / "out").num_rows == 23  # the manifest does not disturb readers


def test_embeddings_of_a_folder_a_tar_and_a_table_are_equal(model: Path, tmp_path: Path) -> None:
    images = small_images(9)
    folder = write_folder(tmp_path / "set", images)
    (tmp_path / "paths.csv").write_text("image,note\n" + "".join(f"set/{name},x\n" for name in images))
    sources = [
        folder, tmp_path / "paths.csv", write_tar(tmp_path / "tars" / "a.tar", images).parent,
        write_parquet(tmp_path / "tables" / "a.parquet", images, row_group=2).parent,
    ]  # fmt: skip
    tables = []
    for number, source in enumerate(sources):
        vitreous.embed(model, source, **OPTIONS).write(tmp_path / str(number), shard_size=4)
        tables.append([row["embedding"] for row in rows(tmp_path / str(number))])
    assert len(tables[0]) == 9
    for table in tables[1:]:
        for vector, expected in zip(table, tables[0], strict=True):
            assert vector == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_a_second_run_computes_only_missing_and_damaged_files(model: Path, images: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    vitreous.predict(model, images, **OPTIONS).write(out, shard_size=5)
    before, parts = rows(out), sorted(out.glob("part-*"))
    parts[1].unlink()
    parts[3].write_bytes(parts[3].read_bytes()[:-40])
    stamps = {part: part.stat().st_mtime_ns for part in parts if part.exists()}
    written = vitreous.predict(model, images, **OPTIONS | {"batch_size": 5}).write(out, shard_size=5)
    assert (written.images, written.errors, written.shards, written.skipped) == (23, 1, 5, 3)
    assert [part for part in parts if stamps.get(part) != part.stat().st_mtime_ns] == [parts[1], parts[3]]
    assert [row["path"] for row in rows(out)] == [row["path"] for row in before]


@pytest.mark.parametrize("change", ["model", "options", "added image", "changed image", "shard size", "kind"])
def test_results_of_another_run_are_not_mixed(change: str, model: Path, images: Path, tmp_path: Path) -> None:
    out, size, options, run = tmp_path / "out", 5, OPTIONS, vitreous.predict
    run(model, images, **options).write(out, shard_size=size)
    (out / "part-00002-of-00005.parquet").unlink()
    before = listed(out)
    match change:
        case "model":
            vitreous.save(random_model("mean"), tmp_path / "other")
            model = tmp_path / "other"
        case "options":
            options = OPTIONS | {"top": 2}
        case "added image":
            (images / "x.png").write_bytes((images / "0001.png").read_bytes())
        case "changed image":
            (images / "0001.png").write_bytes((images / "0002.png").read_bytes())
            os.utime(images / "0001.png", ns=(1, 1))
        case "shard size":
            size = 6
        case "kind":
            run = vitreous.embed  # type: ignore[assignment]
    with pytest.raises(ValueError, match="different run"):
        run(model, images, **options).write(out, shard_size=size)
    assert listed(out) == before


def test_results_in_int8_depend_on_the_scales() -> None:
    network, job = random_model("class token"), Job("predict", precision="int8")
    manifests = []
    for span in (4.0, 4.0, 5.0):
        layer = network.get_submodule("head")
        set_int8_scales(network, Int8Scales({"head": (torch.ones(layer.in_features), (-span, span))}))  # type: ignore[arg-type]
        manifests.append(_manifest([], job, network)["model"])
    assert manifests[0] == manifests[1] != manifests[2]


def test_a_folder_with_other_files_is_not_used(model: Path, images: Path) -> None:
    with pytest.raises(ValueError, match="new or empty folder"):
        vitreous.predict(model, images, **OPTIONS).write(images)


def test_images_in_memory_and_masks_cannot_be_written(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="image files"):
        vitreous.predict(model, small_images(1)["0000.png"], **OPTIONS).write(tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_killed_run_leaves_whole_files_and_can_be_continued(model: Path, images: Path, tmp_path: Path) -> None:
    many = write_folder(tmp_path / "many", small_images(400))
    vitreous.predict(model, many, **OPTIONS).write(tmp_path / "expected", shard_size=4)
    command = [sys.executable, "-m", "vitreous", "predict", model, many, "--out", tmp_path / "out"]
    flags = ["--shard-size", "4", "--batch-size", "4", "--device", "cpu"]
    out = tmp_path / "out"
    with subprocess.Popen([*map(str, command), *flags], stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and len(list(out.glob("part-*"))) < 5:
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
    finished = sorted(out.glob("part-*"))
    assert 5 <= len(finished) < 100
    assert all(parquet.read_table(part).num_rows == 4 for part in finished)
    written = vitreous.predict(model, many, **OPTIONS).write(out, shard_size=4)
    assert (written.images, written.skipped) == (400, len(finished))
    assert [row["label"] for row in rows(out)] == [row["label"] for row in rows(tmp_path / "expected")]
    assert [row["path"] for row in rows(out)] == [row["path"] for row in rows(tmp_path / "expected")]
    assert not [name for name in listed(out) if "aside" in name]
