"""Data set readers, one file per storage format. All readers return `FoundData`.

base.py: `Source`, indexed access to images and labels, and splits. folders.py: class folders. tables.py: CSV, JSON
lines and Parquet. targets.py: several labels or numbers per image, from a table. shards.py: WebDataset tars. arrays.py:
.npz. hub.py: the Hugging Face Hub. named.py: `digits` and published data sets such as CIFAR-10. shapes.py: generated
shapes. download.py: resumable downloads.
"""

from vitreous.data.sources.base import ArraySource, DataSet, FileSource, Source, SpanSource, StoredImage, Subset

__all__ = ["ArraySource", "DataSet", "FileSource", "Source", "SpanSource", "StoredImage", "Subset"]
