from pathlib import Path

import numpy as np
import pytest

from vitreous.data.open import open_data
from vitreous.data.sources.builtin import FILES, NAMES, open_builtin


def test_digits_are_scikit_learns() -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    original = datasets.load_digits()
    source = open_builtin("digits", "", None, 0).parts["all"]
    assert np.array_equal(source.labels, original.target)
    pixels = np.stack([np.asarray(source.picture(i))[..., 0] for i in range(len(source))])
    assert np.abs(pixels - original.images * 255 / 16).max() <= 0.5
    assert (pixels.min(), pixels.max()) == (0, 255)


def test_digits_hold_out_a_fifth() -> None:
    data = open_data("digits")
    assert (len(data.train), len(data.val), data.test) == (1438, 359, None)
    assert data.classes == tuple("0123456789")
    whole = np.bincount(data.train.labels) + np.bincount(data.val.labels)
    assert np.abs(np.bincount(data.val.labels) / whole - 0.2).max() < 0.005
    names = {s.name(i) for s in (data.train, data.val) for i in range(len(s))}
    assert names == {f"digits[{i}]" for i in range(1797)}
    assert [open_data("digits", seed=1).val.name(i) for i in range(5)] != [data.val.name(i) for i in range(5)]


def test_the_licence_lies_beside_the_file() -> None:
    text = (FILES / "digits.txt").read_text()
    assert "CC BY 4.0" in text
    assert "BSD 3-Clause" in text
    assert (FILES / "digits.npz").stat().st_size < 100_000


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("digits:size=3", "digits takes no options"),
        ("shapes:sise=3", r"shapes has no option 'sise' \(did you mean 'size'\?\): use size, count, val"),
        ("shapes:size", "size is '', but must be a whole number"),
        ("shapes:size=large", "size is 'large', but must be a whole number"),
        ("shapes:size=0", "size is 0, but must be a whole number from 8 to 4096"),
    ],
)
def test_options(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        open_data(spec)


def test_a_name_comes_before_a_folder_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ("digits/a/1.jpg", "digits/b/1.jpg", "digits/a/2.jpg", "digits/b/2.jpg"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    monkeypatch.chdir(tmp_path)
    assert len(open_data("digits").classes) == 10
    assert len(open_data("./digits").classes) == 2
    assert "digits" in NAMES
