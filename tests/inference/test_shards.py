"""Shards contain each image exactly once, whatever its container and the shard size."""

import os
import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from image_containers import small_images, write_folder, write_parquet, write_tar
from vitreous.inference.engine import encoded, name_of
from vitreous.inference.predict_images import expand
from vitreous.inference.shards import Shard, find_shards, fingerprint


def contents(shards: list[Shard]) -> list[list[tuple[str, bytes]]]:
    """Return the name and the data of each image by shard, after a round trip through pickle."""
    found = []
    for shard in pickle.loads(pickle.dumps(shards)):
        pairs = [(name_of(image, 0), encoded(image)) for image in shard.images()]
        assert all(isinstance(data, bytes) for _, data in pairs)
        found.append(pairs)
    return found  # type: ignore[return-value]


@given(
    counts=st.lists(st.integers(0, 40), min_size=1, max_size=4), size=st.integers(1, 50), row_group=st.integers(1, 15)
)
@settings(max_examples=60)
def test_every_image_is_in_exactly_one_shard(
    counts: list[int], size: int, row_group: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("mixed")
    paths, expected = [], []
    for number, count in enumerate(counts):
        images = small_images(count, number)
        kind = number % 3
        if kind == 0:
            here = write_folder(folder / str(number), images)
            paths += [here / name for name in images]
            expected += [(str(here / name), data) for name, data in images.items()]
        elif kind == 1:
            paths.append(write_tar(folder / f"{number}.tar", images))
            expected += [(f"{paths[-1]}/{name}", data) for name, data in images.items()]
        else:
            paths.append(write_parquet(folder / f"{number}.parquet", images, row_group))
            expected += [(f"{paths[-1]}[{row}]", data) for row, data in enumerate(images.values())]
    found = contents(find_shards(paths, size))
    assert [pair for shard in found for pair in shard] == expected


@given(count=st.integers(1, 3000), size=st.integers(1, 4000))
def test_shards_of_files_are_full_except_the_last(count: int, size: int) -> None:
    paths = [Path(f"{i}.jpg") for i in range(count)]  # the files are not opened
    sizes = [len(shard.files) for shard in find_shards(paths, size)]
    assert sum(sizes) == count
    assert set(sizes[:-1]) <= {size}
    assert 1 <= sizes[-1] <= size


@pytest.mark.parametrize(("count", "shards"), [(1, 1), (64, 1), (65, 2), (6400, 64), (640_000, 64), (640_001, 65)])
def test_the_automatic_shard_size_depends_on_the_number_of_images(count: int, shards: int) -> None:
    assert len(find_shards([Path("x.jpg")] * count)) == shards


def test_a_large_tar_is_divided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitreous.inference.shards.IMAGE_BYTES", 1024)
    images = small_images(50)
    shards = find_shards([write_tar(tmp_path / "x.tar", images)], 7)
    found = contents(shards)
    assert len(shards) > 5
    assert [data for shard in found for _, data in shard] == list(images.values())
    assert max(map(len, found)) <= 10


def test_relative_names_are_kept_and_found_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = small_images(3)
    write_folder(tmp_path / "set", images)
    write_tar(tmp_path / "x.tar", images)
    write_parquet(tmp_path / "x.parquet", images)
    monkeypatch.chdir(tmp_path)
    shards = find_shards(expand(["set", "x.tar", "x.parquet"]))
    monkeypatch.chdir("/")
    names = [name for shard in contents(shards) for name, _ in shard]
    assert names == [
        *(os.path.join("set", name) for name in images), *(f"x.tar/{name}" for name in images),
        *(f"x.parquet[{row}]" for row in range(3)),
    ]  # fmt: skip


def test_only_images_of_a_tar_are_read(tmp_path: Path) -> None:
    files = {
        **small_images(2),
        "0000.cls": b"3",
        "photo.v2.png": small_images(1)["0000.png"],
        "._0000.png": b"",
        "a": b"",
    }
    [shard] = contents(find_shards([write_tar(tmp_path / "x.tar", files)]))
    assert [name.rpartition("/")[2] for name, _ in shard] == ["0000.png", "0001.png", "photo.v2.png"]


def test_damaged_containers_yield_errors_for_what_is_missing(tmp_path: Path) -> None:
    whole = write_tar(tmp_path / "whole.tar", small_images(4)).read_bytes()
    (tmp_path / "cut.tar").write_bytes(whole[:2700])  # inside the second image
    (tmp_path / "none.tar").write_bytes(b"no tar" * 200)
    write_parquet(tmp_path / "x.parquet", {"a": b"data", "b": None})
    found = {}
    for shard in find_shards(sorted(tmp_path.glob("*.[tp]ar*"))):
        for image in shard.images():
            try:
                found[name_of(image, 0).removeprefix(f"{tmp_path}/")] = encoded(image)
            except (OSError, ValueError) as error:
                found[name_of(image, 0).removeprefix(f"{tmp_path}/")] = str(error)
    errors = {name: value for name, value in found.items() if isinstance(value, str)}
    assert "truncated" in errors["cut.tar"]
    assert "tar" in errors["none.tar"]
    assert "empty" in errors["x.parquet[1]"]
    assert "whole.tar/0003.png" in found.keys() - errors.keys()
    assert found["x.parquet[0]"] == b"data"


def test_the_fingerprint_changes_with_the_files_and_the_shards(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "set", small_images(5))
    paths = sorted(folder.iterdir())
    before = fingerprint(find_shards(paths, 2))
    assert fingerprint(find_shards(paths, 2)) == before
    assert fingerprint(find_shards(paths, 3)) != before
    assert fingerprint(find_shards(paths[:4], 2)) != before
    os.utime(paths[3], ns=(1, 1))
    changed = fingerprint(find_shards(paths, 2))
    assert changed != before
    paths[3].write_bytes(b"other")
    os.utime(paths[3], ns=(1, 1))
    assert fingerprint(find_shards(paths, 2)) != changed
    paths[3].unlink()
    assert len({before, changed, fingerprint(find_shards(paths, 2))}) == 3
