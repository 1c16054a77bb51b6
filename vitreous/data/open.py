"""One word for a data set, `--data`, and what it may mean: a folder, a table, shards, arrays, the hub, or a name."""

import os
from itertools import islice
from pathlib import Path

from vitreous.common.checks import check_real, suggestion
from vitreous.data.masks.folders import has_masks, open_unmasked, pairs_in
from vitreous.data.sources.arrays import open_arrays
from vitreous.data.sources.base import DataSet
from vitreous.data.sources.builtin import NAMES, open_builtin
from vitreous.data.sources.folders import open_folder
from vitreous.data.sources.shards import open_shards
from vitreous.data.sources.stored import is_picture
from vitreous.data.sources.tables import SUFFIXES, open_table
from vitreous.data.split import Found, arrange


def open_data(
    spec: str, *, root: Path | None = None, val_fraction: float = 0.2, seed: int = 0, labelled: bool = True
) -> DataSet:
    """The data set that `spec` means, in parts. What is wrong with it is said here, before any model exists.

    `labelled` is False for those who need pictures only: then classes are not looked at, nor do there have to be any.

    A built-in name comes before a folder of that name: write `./digits` for the folder. `root` is where a local copy of
    a published set lies, where the paths of a table begin, and where any other path is looked for first.

    >>> data = open_data("digits")
    >>> len(data.train), len(data.val), data.classes[:3]
    (1438, 359, ('0', '1', '2'))
    """
    check_real("val_fraction", val_fraction, 0, 1)
    found = find_data(spec, root, seed, labelled)
    found.labelled = found.labelled and labelled
    return arrange(found, val_fraction, seed)


def find_data(spec: str, root: Path | None = None, seed: int = 0, labelled: bool = True) -> Found:
    """What there is behind `spec`, with its problems, not yet divided."""
    name, _, options = spec.partition(":")
    if name in NAMES:
        return open_builtin(name, options, root, seed)
    if spec.startswith("hf:"):
        from vitreous.data.sources.hub import open_hub

        return open_hub(spec)
    path = Path(spec).expanduser()
    if root is not None and (root / path).exists():
        path = root / path
    if path.is_dir():
        return _open_directory(path, labelled)
    if ".tar" in spec and (spec.startswith(("http://", "https://")) or not path.is_file() or path.suffix == ".tar"):
        return open_shards(spec, root)
    if not path.exists():
        raise ValueError(_nothing_there(spec, path))
    if path.suffix.lower() in SUFFIXES:
        return open_table(path, root)
    if path.suffix.lower() == ".npz":
        return open_arrays(path)
    if is_picture(path.name):
        raise ValueError(f"{spec} is a single picture: a data set is a folder of them, in a folder for each class")
    raise ValueError(
        f"{spec} is of no kind that is known: a data set is a folder, {', '.join(SUFFIXES)}, .npz, .tar, "
        f"hf:owner/name, or one of {', '.join(NAMES)}"
    )


def _open_directory(path: Path, labelled: bool) -> Found:
    """A folder of class folders, of shards, or of Parquet files."""
    if has_masks(path) and pairs_in(path):
        if labelled:
            raise ValueError(
                f"{path} has pictures beside masks, and no class for each picture: it is for segmenters (train --task "
                "segment)"
            )
        return open_unmasked(path)
    endings = _endings(path, depth=2)
    if ".tar" in endings:
        return open_shards(str(path))
    if ".parquet" in endings:
        from vitreous.data.sources.hub import choose
        from vitreous.data.sources.parquet import open_parquet

        files = [file.relative_to(path).as_posix() for file in path.rglob("*.parquet")]
        parts = choose(str(path), files, None)
        return open_parquet(path.name, {part: [path / file for file in inside] for part, inside in parts.items()})
    return open_folder(path, labelled)


def _endings(path: Path, depth: int) -> set[str]:
    """Of the files in a folder and its folders, the first few in each: there may be millions of pictures."""
    found: set[str] = set()
    with os.scandir(path) as entries:
        for entry in entries if depth == 2 else islice(entries, 20):
            if entry.name.startswith("."):
                continue
            if not entry.is_dir():
                found.add(os.path.splitext(entry.name)[1].lower())
            elif depth:
                found |= _endings(Path(entry.path), depth - 1)
    return found


def _nothing_there(spec: str, path: Path) -> str:
    siblings = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    hint = suggestion(spec, NAMES) or suggestion(path.name, siblings)
    return f"there is no data at {spec!r}{hint}: it is neither a file nor a folder, nor one of {', '.join(NAMES)}"
