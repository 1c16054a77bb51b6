"""Checks of a data set before training, for `vitreous data check`.

check.py: `check_data` reads and decodes every image and mask. report.py: the `DataReport` that it returns, as text and
as JSON. contact_sheet.py: a PNG with some images of every class.
"""

from vitreous.data.doctor.check import check_data
from vitreous.data.doctor.report import DataReport

__all__ = ["DataReport", "check_data"]
