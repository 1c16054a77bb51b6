import io
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitreous.common.checks import BadValue
from vitreous.data.doctor import check_data
from vitreous.data.doctor.check import Sample, check_image

RANDOM = np.random.default_rng(0)


def draw(path: Path, mode: str = "RGB", size: tuple[int, int] = (50, 40)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise(mode, size).save(path)


def noise(mode: str = "RGB", size: tuple[int, int] = (60, 40)) -> Image.Image:
    return Image.fromarray(RANDOM.integers(0, 256, (size[1], size[0], 3), np.uint8)).convert(mode)


def encode(image: Image.Image, form: str = "PNG", **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    root = tmp_path / "pets"
    for split, count in (("train", 6), ("val", 2)):
        for name in ("cat", "dog"):
            for i in range(count):
                draw(root / split / name / f"{i}.png")
    return root


def test_folder_without_problems(pets: Path) -> None:
    report = check_data(str(pets))
    assert report.problems == 0
    assert report.counts == {"train": {"cat": 6, "dog": 6}, "val": {"cat": 2, "dog": 2}}
    assert set(report.sizes.values()) == {(40, 50)}
    assert (report.unreadable, report.leaks, report.conflicts, report.duplicates, report.odd) == ([], [], [], [], {})
    assert "no problems" in str(report)


def test_every_kind_of_problem_is_reported(pets: Path) -> None:
    (pets / "train/cat/0.png").write_bytes((pets / "train/cat/0.png").read_bytes()[:100])
    (pets / "train/dog/0.png").write_text("not an image")
    shutil.copy(pets / "train/cat/1.png", pets / "val/cat/copy.png")
    shutil.copy(pets / "train/cat/2.png", pets / "train/dog/copy.png")
    shutil.copy(pets / "train/dog/3.png", pets / "train/dog/copy3.png")
    draw(pets / "train/dog/grey.png", "L")
    draw(pets / "train/dog/tiny.png", size=(8, 9))
    (pets / "train/owl").mkdir()
    draw(pets / "val/fox/1.png")
    report = check_data(str(pets))
    assert {sample.name for sample in report.unreadable} == {"train/cat/0.png", "train/dog/0.png"}
    assert all(sample.reason for sample in report.unreadable)
    assert [[sample.name for sample in group] for group in report.leaks] == [["train/cat/1.png", "val/cat/copy.png"]]
    assert [[sample.label for sample in group] for group in report.conflicts] == [["cat", "dog"]]
    assert [[sample.name for sample in group] for group in report.duplicates] == [
        ["train/dog/3.png", "train/dog/copy3.png"]
    ]
    assert report.odd["grey"] == [Sample("train", "dog", "train/dog/grey.png")]
    assert [sample.name for sample in report.odd["smaller than 32 pixels"]] == ["train/dog/tiny.png"]
    assert any("no images in 'train/owl'" in problem for problem in report.label_problems)
    assert any("val has 'fox', which train lacks" in problem for problem in report.label_problems)
    assert report.problems == 2 + 2 + 1 + 1
    text = str(report)
    for word in (
        "train/cat/0.png",
        "leak: train/cat/1.png = val/cat/copy.png",
        "6 problems",
        "grey: 1",
    ):
        assert word in text


def test_leak_with_two_labels_is_counted_and_printed_once(pets: Path) -> None:
    shutil.copy(pets / "train/cat/1.png", pets / "val/dog/copy.png")
    shutil.copy(pets / "train/cat/1.png", pets / "train/cat/again.png")
    report = check_data(str(pets))
    assert len(report.leaks) == len(report.conflicts) == report.problems == 1
    assert report.duplicates == []
    assert str(report).count("val/dog/copy.png") == 1
    assert "leak, label conflict" in str(report)


def test_equal_unreadable_files_are_not_leaks(pets: Path) -> None:
    for name in ("train/cat/0.png", "val/dog/0.png"):
        (pets / name).write_bytes(b"")
    report = check_data(str(pets))
    assert (len(report.unreadable), report.leaks, report.conflicts, report.problems) == (2, [], [], 2)


def test_duplicates_in_different_random_splits_are_leaks(tmp_path: Path) -> None:
    for name in "ab":
        draw(tmp_path / name / "0.png")
        for i in range(1, 10):
            shutil.copy(tmp_path / name / "0.png", tmp_path / name / f"{i}.png")
    report = check_data(str(tmp_path))
    assert {sample.split for group in report.leaks for sample in group} == {"train", "val"}
    assert report.problems == 2


def test_class_too_small_to_split_is_a_problem_and_does_not_stop_the_check(tmp_path: Path) -> None:
    draw(tmp_path / "a/1.png")
    draw(tmp_path / "b/1.png")
    draw(tmp_path / "b/2.png", "L")
    report = check_data(str(tmp_path))
    assert report.counts == {"all": {"a": 1, "b": 2}}
    assert len(report.label_problems) == 1
    assert "at least 2 images" in report.label_problems[0]
    assert "grey: 1 image, e.g. b/2.png\n" in str(report)


def test_missing_file_is_unreadable(pets: Path) -> None:
    (pets / "train/cat/0.png").unlink()
    (pets / "train/cat/0.png").symlink_to(pets / "nowhere.png")
    [sample] = check_data(str(pets)).unreadable
    assert (sample.name, sample.reason) == ("train/cat/0.png", "No such file or directory")


def test_arrays_are_checked(tmp_path: Path) -> None:
    x = RANDOM.integers(0, 256, (20, 40, 40, 3), np.uint8)
    y = np.arange(20) % 2
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=x[:1], y_test=y[:1])
    report = check_data(str(tmp_path / "a.npz"))
    assert [[sample.name for sample in group] for group in report.leaks] == [["a/train[0]", "a/test[0]"]]


def test_contact_sheet_that_is_not_png_is_rejected_before_any_image_is_read(pets: Path) -> None:
    with pytest.raises(BadValue, match=r"sheet.txt', but must be a .png file name"):
        check_data(str(pets), contact_sheet=pets.parent / "sheet.txt")
    assert not (pets.parent / "sheet.txt").exists()


def test_many_classes_and_imbalance_are_summarised(tmp_path: Path) -> None:
    counts = np.concatenate([np.full(49, 3), [40]])
    labels = np.repeat(np.arange(50), counts)
    np.savez(tmp_path / "a.npz", x=RANDOM.integers(0, 256, (len(labels), 4, 4), np.uint8), y=labels)
    report = check_data(str(tmp_path / "a.npz"))
    text = str(report)
    assert report.balance == ("49", 32, "0", 2)
    assert "imbalance: '49' has 32 images, '0' has 2" in text
    assert "50 classes" in text
    assert len(text.splitlines()) < 25


def test_dark_sixteen_bit_images_are_reported_with_the_range_they_use(pets: Path) -> None:
    assert check_data(str(pets)).brightest is None
    for index, brightest in enumerate((3000, 4000)):
        values = RANDOM.integers(0, brightest, (40, 50), np.uint16)
        values[0, 0] = brightest
        Image.fromarray(values).save(pets / f"train/cat/deep{index}.png")
    report = check_data(str(pets))
    assert report.brightest == 4000
    assert "--value-range 0 4095" in str(report)
    Image.fromarray(np.full((40, 50), 60_000, np.uint16)).save(pets / "train/cat/bright.png")
    assert "--value-range" not in str(check_data(str(pets)))


# ---- One image -------------------------------------------------------------------------------------------------------


def turned() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return encode(noise(), "JPEG", exif=exif)


CASES = {
    "plain": (encode(noise(), "JPEG"), (), (40, 60)),
    "grey": (encode(noise("L")), ("grey",), (40, 60)),
    "one bit": (encode(noise("1")), ("grey",), (40, 60)),
    "cmyk": (encode(noise("CMYK"), "JPEG"), ("CMYK",), (40, 60)),
    "16 bit": (
        encode(Image.fromarray(RANDOM.integers(0, 65536, (40, 60), np.uint16))),
        ("grey", "more than 8 bits"),
        (40, 60),
    ),
    "palette": (encode(noise("P")), ("palette",), (40, 60)),
    "alpha": (encode(noise("RGBA")), ("alpha",), (40, 60)),
    "animated": (
        encode(noise("RGB"), "WEBP", save_all=True, append_images=[noise("RGB")], lossless=True),
        ("animated",),
        (40, 60),
    ),
    "two pages": (
        encode(noise("RGB"), "TIFF", save_all=True, append_images=[noise("RGB")]),
        ("several pages",),
        (40, 60),
    ),
    "small": (encode(noise(size=(31, 50))), ("smaller than 32 pixels",), (50, 31)),
    "long": (encode(noise(size=(200, 40))), ("more than 4 times as long as wide",), (40, 200)),
    "turned": (turned(), ("turned by EXIF",), (60, 40)),
    "array": (np.zeros((40, 60, 3), np.uint8), (), (40, 60)),
    "grey array": (np.zeros((40, 60, 1), np.uint8), ("grey",), (40, 60)),
}


@pytest.mark.parametrize("case", CASES)
def test_unusual_images_are_reported(case: str) -> None:
    image, odd, size = CASES[case]
    checked = check_image(image)
    assert (checked.odd, checked.size, checked.error) == (odd, size, "")


@pytest.mark.parametrize(
    "data", [b"", b"not an image", encode(noise(), "JPEG")[:900], encode(noise(size=(300, 300)))[:5000]], ids=len
)
def test_unreadable_images_are_reported_with_the_error(data: bytes) -> None:
    checked = check_image(data)
    assert checked.size is None
    assert checked.error


def test_digests_of_equal_files_are_equal() -> None:
    one = noise()
    png, again, jpeg = encode(one), encode(one), encode(one, "JPEG")
    assert check_image(png).digest == check_image(again).digest != check_image(jpeg).digest
    flat = np.zeros((4, 9, 1), np.uint8)
    assert check_image(flat).digest != check_image(flat.reshape(9, 4, 1)).digest


# ---- Masks -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def masked(tmp_path: Path) -> Path:
    """Ten 8 x 8 images, each half class 1, a quarter class 2 and a quarter ignored."""
    root = tmp_path / "set"
    for index in range(10):
        split = "train" if index < 6 else "val"
        for kind in ("images", "masks"):
            (root / kind / split).mkdir(parents=True, exist_ok=True)
        mask = np.full((8, 8), 1, np.uint8)
        mask[4:, :4], mask[4:, 4:] = 2, 255
        if index == 0:
            mask[mask == 2] = 1
        noise(size=(8, 8)).save(root / f"images/{split}/{index}.png")
        Image.fromarray(mask).save(root / f"masks/{split}/{index}.png")
    (root / "classes.txt").write_text("1 [cat]\n2 dog\n")
    return root


def test_mask_classes_are_counted_in_images_and_pixels(masked: Path) -> None:
    report = check_data(str(masked))
    assert report.problems == 0
    assert report.masks is not None
    assert report.masks.classes == ("[cat]", "dog")
    train, val = report.masks.coverage["train"], report.masks.coverage["val"]
    assert (train.images, val.images) == ([6, 5], [4, 4])
    assert val.fractions == pytest.approx([2 / 3, 1 / 3])
    assert train.fractions == pytest.approx([(32 * 5 + 48) / 288, 80 / 288])
    assert (train.ignored, val.ignored) == (0.25, 0.25)


def test_mask_problems_are_counted(masked: Path) -> None:
    (masked / "masks/train/3.png").unlink()
    Image.fromarray(np.full((8, 8), 7, np.uint8)).save(masked / "masks/train/4.png")
    report = check_data(str(masked)).to_dict()
    assert report["problems"] == 2
    assert report["mask_problems"][0].startswith("1 of 10 images has no mask: 'images/train/3.png'")
    assert "7 (in 1 mask)" in report["mask_problems"][1]


def test_duplicate_image_in_two_splits_of_masked_data_is_a_leak(masked: Path) -> None:
    (masked / "images/val/6.png").write_bytes((masked / "images/train/0.png").read_bytes())
    text = str(check_data(str(masked)))
    assert "leak: images/train/0.png = images/val/6.png" in text
    assert "[cat]" in text
    assert "1 problem" in text


def test_class_missing_from_train_is_reported_with_its_fraction(masked: Path) -> None:
    for index in range(6):
        Image.fromarray(np.full((8, 8), 1, np.uint8)).save(masked / f"masks/train/{index}.png")
    report = check_data(str(masked))
    assert report.problems == 1
    problem = "no train mask contains 'dog' (33.3% of val pixels)"
    assert report.to_dict()["mask_problems"][0].startswith(problem)
    assert problem[:35] in str(report)


def test_smoothed_masks_are_reported_without_a_table_of_grey_levels(masked: Path) -> None:
    (masked / "classes.txt").unlink()
    for index, path in enumerate(sorted((masked / "masks").glob("*/*.png"))):
        Image.fromarray(((np.arange(64) + 25 * index) % 256).astype(np.uint8).reshape(8, 8)).save(path)
    report = check_data(str(masked))
    assert report.problems == 1
    assert "smoothed" in str(report)
    assert len(str(report).splitlines()) < 6


def test_contact_sheet_of_masked_data_is_rejected(masked: Path) -> None:
    with pytest.raises(BadValue, match="omitted for segmentation data"):
        check_data(str(masked), contact_sheet=masked.parent / "sheet.png")
