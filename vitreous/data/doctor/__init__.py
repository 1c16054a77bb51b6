"""Data set checks for `vitreous data check`.

check.py: `check_data` decodes every image and mask, and returns a `DataReport` for output as text or JSON.
findings.py: types for suspicious images, which `vitreous.evaluation` finds with a model.
contact_sheet.py: a PNG with sample images of every class.
"""

from vitreous.data.doctor.check import DataReport, check_data, open_splits

__all__ = ["DataReport", "check_data", "open_splits"]
