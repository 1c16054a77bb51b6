"""Readers of data sets: one file for each kind of storage, all of which return `FoundData`.

base.py: `Source`, images read by index; their splits and labels. folders.py: class folders. tables.py: CSV, JSON lines
and Parquet. shards.py: WebDataset tars. arrays.py: .npz. hub.py: the Hugging Face hub. named.py: `digits` and published
data sets such as CIFAR-10. shapes.py: drawn shapes. download.py: files from the network.
"""

from vitreous.data.sources.base import ArraySource, DataSet, FileSource, Source, SpanSource, StoredImage, Subset

__all__ = ["ArraySource", "DataSet", "FileSource", "Source", "SpanSource", "StoredImage", "Subset"]
