import pickle
from pathlib import Path

import numpy as np
import pytest

from vitreous.data.doctor import check_data
from vitreous.data.open import open_data, open_masked


def test_data_set_kinds_are_recognised(tmp_path: Path) -> None:
    """Each kind has its own tests; this one only checks that it is recognised, also under a root."""
    for name in "ab":
        for i in range(5):
            path = tmp_path / "folder" / name / f"{i}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    lines = ["path,label", *(f"{name}/{i}.jpg,{name}" for name in "ab" for i in range(5))]
    (tmp_path / "folder/t.csv").write_text("\n".join(lines))
    np.savez(tmp_path / "arrays.npz", x=np.zeros((10, 2, 2), np.uint8), y=np.array(list("ab" * 5)))
    for spec in ("folder", "folder/t.csv", "arrays.npz"):
        root = tmp_path / "folder" if spec.endswith("csv") else None
        data = open_data(str(tmp_path / spec), root=root)
        assert (data.classes, len(data.train), len(data.val)) == (("a", "b"), 8, 2)
    for spec in ("folder", "arrays.npz"):
        assert open_data(spec, root=tmp_path).classes == ("a", "b")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("cifar11", r"data set 'cifar11' not found \(did you mean 'cifar10'\?\)"),
        ("Digits", r"data set 'Digits' not found \(did you mean 'digits'\?\)"),
        ("{}/flowrs", r"data set '.*flowrs' not found \(did you mean '.*/flowers102/'\?\)"),
        ("{}/zzz", "data set '.*/zzz' not found; expected a folder"),
        ("{}/none/zzz", "data set '.*/none/zzz' not found: '.*/none' does not exist"),
        ("{}/one.jpg", "is a single image"),
        ("{}/notes.txt", r"is not a data set; expected a folder, a \.csv"),
    ],
)
def test_error_for_missing_or_unknown_data_names_what_is_accepted(tmp_path: Path, spec: str, message: str) -> None:
    (tmp_path / "flowers102").mkdir()
    (tmp_path / "one.jpg").touch()
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ValueError, match=message) as caught:
        open_data(spec.format(tmp_path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("spec", ["imges", "imges/", "imagees", "IMAGE", "./imges"])
def test_misspelt_folder_suggests_its_sibling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str) -> None:
    """Even if a built-in name, imagenette, is similar."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "images").mkdir()
    (tmp_path / "masks.txt").touch()
    for read in (open_data, open_masked, check_data):
        with pytest.raises(ValueError, match=r"'.*' not found \(did you mean 'images/'\?\); expected"):
            read(spec)


def test_misspelt_file_suggests_its_sibling(tmp_path: Path) -> None:
    (tmp_path / "Labels.csv").touch()
    with pytest.raises(ValueError, match=r"not found \(did you mean '.*/Labels\.csv'\?\)"):
        open_data(str(tmp_path / "lables.csv"))


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 1.5])
def test_fraction_out_of_range_is_rejected(fraction: float) -> None:
    with pytest.raises(ValueError, match="val_fraction is"):
        open_data("digits", val_fraction=fraction)


@pytest.mark.parametrize("spec", ["digits", "shapes", "folder"])
def test_source_can_be_pickled(tmp_path: Path, spec: str) -> None:
    for path in ("a/1.jpg", "a/2.jpg", "b/1.jpg", "b/2.jpg"):
        (tmp_path / "folder" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "folder" / path).write_text(path)
    source = open_data(spec, root=tmp_path if spec == "folder" else None).train
    copy = pickle.loads(pickle.dumps(source))
    assert np.array_equal(copy.labels, source.labels)
    assert np.array_equal(np.asarray(copy.image(1)), np.asarray(source.image(1)))
    assert copy.name(1) == source.name(1)
