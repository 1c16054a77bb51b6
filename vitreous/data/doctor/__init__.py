"""Checks of a data set before training, for `vitreous data check`.

check.py: `check_data` reads and decodes every image and mask, and returns a `DataReport`, for text and JSON.
contact_sheet.py: a PNG with some images of every class.
"""

from vitreous.data.doctor.check import DataReport, check_data

__all__ = ["DataReport", "check_data"]
