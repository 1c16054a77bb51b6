"""Data pipeline: open data sets, decode and augment images, and load batches.

open.py: resolves `--data` and makes the train, val and test splits. loader.py: batches and sample order. resident.py:
images kept in memory. sources/: readers for each storage format. image/: decoding and cropping. augment/: augmentation
on the device. masks/: segmentation masks. doctor/: `vitreous data check`. Names are imported on first use, to keep
torch out of `vitreous --help`.
"""

from typing import TYPE_CHECKING

from vitreous.common.lazy_names import lazy_names

if TYPE_CHECKING:
    from vitreous.data.augment.config import Augmentation as Augmentation
    from vitreous.data.loader import Batch as Batch
    from vitreous.data.loader import EvalLoader as EvalLoader
    from vitreous.data.loader import Reader as Reader
    from vitreous.data.loader import StreamLoader as StreamLoader
    from vitreous.data.loader import TrainLoader as TrainLoader
    from vitreous.data.open import find_data as find_data
    from vitreous.data.open import make_splits as make_splits
    from vitreous.data.open import open_data as open_data
    from vitreous.data.open import open_masked as open_masked
    from vitreous.data.resident import ResidentLoader as ResidentLoader
    from vitreous.data.sources.base import DataSet as DataSet
    from vitreous.data.sources.base import FileSource as FileSource
    from vitreous.data.sources.base import Source as Source
    from vitreous.data.sources.base import StoredImage as StoredImage
    from vitreous.data.sources.base import Subset as Subset

_HOMES = {
    "Augmentation": "vitreous.data.augment.config",
    "Batch": "vitreous.data.loader",
    "DataSet": "vitreous.data.sources.base",
    "EvalLoader": "vitreous.data.loader",
    "FileSource": "vitreous.data.sources.base",
    "find_data": "vitreous.data.open",
    "make_splits": "vitreous.data.open",
    "open_data": "vitreous.data.open",
    "open_masked": "vitreous.data.open",
    "Reader": "vitreous.data.loader",
    "ResidentLoader": "vitreous.data.resident",
    "Source": "vitreous.data.sources.base",
    "StoredImage": "vitreous.data.sources.base",
    "StreamLoader": "vitreous.data.loader",
    "Subset": "vitreous.data.sources.base",
    "TrainLoader": "vitreous.data.loader",
}
__all__ = sorted(_HOMES)
if not TYPE_CHECKING:  # hidden from mypy, which would otherwise accept any name
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
