import subprocess
import sys

import pytest

from vitreous.data.augment.config import Augmentation


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("crop", "resize", "one of 'resized', 'padded', 'none' .did you mean 'resized'"),
        ("crop_scale", 0.5, "a pair of numbers .low, high."),
        ("crop_scale", (0.0, 1.0), "a pair of numbers .low, high."),
        ("crop_scale", (0.9, 0.1), "a pair of numbers .low, high."),
        ("crop_scale", (0.1, 1.5), "a number from 0 to 1"),
        ("flip", 50, "a number from 0 to 1"),
        ("flip", float("nan"), "a number from 0 to 1"),
        ("flip", "always", "a number from 0 to 1 or 'alternate'"),
        ("policy", "trivail", ".*did you mean 'trivial'"),
        ("policy_layers", 0, "an integer from 1 to 8"),
        ("policy_magnitude", -1.0, "a number from 0 to 15"),
        ("colour_jitter", 1.1, "a number from 0 to 1"),
        ("erasing", True, "a number from 0 to 1"),
        ("mixup", -0.2, "a number from 0 to 32"),
        ("cutmix", 1e-9, "0 .off. or a number from 0.01 to 32"),
        ("repeats", 1.5, "an integer from 1 to 16"),
    ],
)
def test_error_names_the_invalid_field(field: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=f"augmentation.{field} is .*, but must be {message}"):
        Augmentation(**{field: value})  # type: ignore[arg-type]


def test_range_limits_are_accepted() -> None:
    ends = Augmentation(flip=0, erasing=1, crop_scale=(1.0, 1.0), mixup=0.01, cutmix=32, policy_magnitude=15)
    assert (ends.flip, ends.erasing, ends.cutmix) == (0, 1, 32)


def test_module_does_not_import_torch() -> None:
    code = "import sys, vitreous.data.augment.config; assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
