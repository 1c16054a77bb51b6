from pathlib import Path

import numpy as np
import pytest

from vitreous.common.checks import BadValue
from vitreous.data.masks.files import found_classes, number_classes, read_classes


def listing(folder: Path, text: str) -> Path:
    path = folder / "classes.txt"
    path.write_bytes(text.encode())
    return path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cat\ndog\n", {0: "cat", 1: "dog"}),
        ("1 cat\n0 dog\n", {0: "dog", 1: "cat"}),
        ("\ufeff7\tbus stop\r\n\r\n# a comment\r\n9: traffic light\r\n", {7: "bus stop", 9: "traffic light"}),
        ("0,sky\n255,sea\n", {0: "sky", 255: "sea"}),
        ("  background \n café\n", {0: "background", 1: "café"}),
        ("0 0\n1 1\n", {0: "0", 1: "1"}),
        ("1. background\n2. bus stop\n", {1: "background", 2: "bus stop"}),
        ("lane 1\nlane 2\n", {0: "lane 1", 1: "lane 2"}),
        ("pet 1\nbackground\n", {0: "pet 1", 1: "background"}),
    ],
)
def test_lines_contain_names_or_ids_and_names(text: str, expected: dict[int, str], tmp_path: Path) -> None:
    assert read_classes(listing(tmp_path, text)) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "lists no class"),
        ("# nothing\n\n", "lists no class"),
        ("0 cat\ndog\n", "line 2: expected 'ID NAME' .*, got 'dog'"),
        ("0 cat\n\n0 dog\n", "line 3: id 0 of 'dog' is already used by 'cat'"),
        ("0 cat\n1 cat\n", "lists 'cat' more than once"),
        ("cat\ncat\n", "lists 'cat' more than once"),
        ("0\n1\n", "line 1: expected 'ID NAME' or 'NAME', got '0'"),
        ("pet 1\nbus stop 2\n", "ids must precede names, got 'pet 1'; write '1 pet', or '0 pet 1'"),
        ("pet,1\nsky,2\n", "write '1 pet'"),
        ("sky : 0\n", "write '0 sky'"),
        ("70000 cat\n1 dog\n", "line 1: ids must be from 0 to 65535, got 70000"),
    ],
)
def test_invalid_class_lists_are_rejected(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        read_classes(listing(tmp_path, text))


def test_binary_class_list_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_bytes(b"caf\xe9\n")
    with pytest.raises(ValueError, match=r"classes\.txt is not UTF-8 text"):
        read_classes(tmp_path / "classes.txt")


def test_classes_are_numbered_by_id_and_others_ignored() -> None:
    classes, ids, table = number_classes({3: "sea", 300: "sky", 255: "sun"})
    assert (classes, ids) == (("sea", "sky", "sun"), (3, 300, 255))
    assert table.dtype == np.uint8
    assert table[[3, 300, 255, 0, 65535]].tolist() == [0, 1, 2, 255, 255]
    assert np.count_nonzero(table != 255) == 3
    assert found_classes([7, 0, 255]) == {0: "0", 7: "7"}


def test_too_few_too_many_and_unknown_classes_are_rejected() -> None:
    names = {0: "sky", 1: "sea", 2: "border"}
    with pytest.raises(BadValue, match=r"ignore is 'boarder', but must be one of .*did you mean 'border'"):
        number_classes(names, ("boarder",))
    with pytest.raises(ValueError, match=r"at least 2 classes are required, got only 'sky' .id 255 is ignored"):
        number_classes(names, ("sea", "border"))
    with pytest.raises(ValueError, match="at least 2 classes are required, got none"):
        number_classes(names, ("sky", "sea", "border"))
    with pytest.raises(ValueError, match="at most 255 classes are supported, got 300"):
        number_classes({i: str(i) for i in range(300)})
    assert len(number_classes({i: str(i) for i in range(256)}, ("7",))[0]) == 255


def test_class_order_of_a_model_is_kept() -> None:
    names = {1: "pet", 2: "background", 3: "border"}
    classes, ids, table = number_classes(names, ("border",), order=("background", "pet"))
    assert (classes, ids, table[[1, 2, 3]].tolist()) == (("background", "pet"), (2, 1), [1, 0, 255])
    assert number_classes(names, (), order=("background", "pet"))[0] == ("pet", "background", "border")
