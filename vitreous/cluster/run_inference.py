"""`vitreous.predict` and `vitreous.embed`: predictions and features of images, on this machine or on a Ray cluster."""

import functools
import os
from collections.abc import Sequence
from typing import Literal, cast

import torch

from vitreous.cluster.ray_cluster import WorkerSize, import_ray
from vitreous.cluster.ray_shards import run_shards
from vitreous.common.checks import check_choice, fail
from vitreous.inference.compute import Runner, compute
from vitreous.inference.engine import Images, Precision
from vitreous.inference.predict_images import Embeddings, Job, Results, find_files, open_encoder, open_model
from vitreous.inference.predictions import MultiLabelPrediction, NumberPrediction, Prediction, Segmentation
from vitreous.model.protocol import Model

EngineName = Literal["local", "ray"]


def predict(
    model: Model | str | os.PathLike[str],
    images: Images | Sequence[str | os.PathLike[str]],
    *,
    top: int | None = None,
    image_size: int | Sequence[int] | None = None,
    flip: bool = False,
    batch_size: int = 32,
    device: str | torch.device | None = "auto",
    precision: Precision = "fp32",
    decode: Literal["exact", "fast"] = "exact",
    merge_tokens: int = 0,
    coverage: float | None = None,
    engine: EngineName = "local",
    workers: int | None = None,
    worker_cpus: int | None = None,
    worker_gpus: float | None = None,
) -> Results[Prediction] | Results[MultiLabelPrediction] | Results[NumberPrediction] | Results[Segmentation]:
    """Predict labels for images, numbers if the model is a regression model, or masks if it is a segmenter.

    Nothing is computed until the results are iterated, or written to a folder with `Results.write`.

    Args:
        model: A model or a checkpoint (folder, weight file, catalog name, hf-hub:owner/name).
        images: Paths of image files, folders, tar files, Parquet files with images or tables of paths, globs, or images
            (encoded bytes, uint8 arrays or Pillow images).
        top: Number of labels per image (default 5). Only for classifiers.
        image_size: Input size. Default: the image size of the model. Position embeddings are resampled.
        flip: Average the predictions for each image and its mirror image.
        decode: "fast" decodes large JPEGs at a reduced scale, which can change results. Not supported for segmenters.
        merge_tokens: Number of pairs of patches that every block of a ViT merges: faster, but can change results.
        coverage: Also return label sets, which contain the true label with this probability. Needs a calibrated model.
        engine: "ray" computes on a Ray cluster: the one at RAY_ADDRESS or on this machine, or else a new one here. All
            machines must see the images under the same paths. Not supported for segmenters.
        workers: Number of processes on the cluster. Default: as many as fit.
        worker_cpus: CPU cores per process. Default: 1 or, with a GPU, the cores that the machine has for it.
        worker_gpus: GPUs per process. Default: 1 if the machines have GPUs. With 0.5, two processes share a GPU.

    >>> import vitreous, numpy as np
    >>> model = vitreous.create("ViT-Lite-6/4", num_classes=3)
    >>> [prediction] = vitreous.predict(model, np.zeros((48, 64, 3), dtype=np.uint8), device="cpu", top=2)
    >>> len(prediction.predictions)
    2
    """
    run = _runner(engine, WorkerSize(workers, worker_cpus, worker_gpus))
    job = Job("predict", top, flip, batch_size, device, precision, decode, coverage, merge_tokens)
    files = find_files(images)
    return compute(job, open_model(model, image_size), images, files, run)


def embed(
    model: Model | str | os.PathLike[str],
    images: Images | Sequence[str | os.PathLike[str]],
    *,
    image_size: int | Sequence[int] | None = None,
    flip: bool = False,
    batch_size: int = 32,
    device: str | torch.device | None = "auto",
    precision: Precision = "fp32",
    decode: Literal["exact", "fast"] = "exact",
    merge_tokens: int = 0,
    engine: EngineName = "local",
    workers: int | None = None,
    worker_cpus: int | None = None,
    worker_gpus: float | None = None,
) -> Embeddings:
    """Compute the pooled features before the head for each image. See `predict` for the arguments.

    >>> import vitreous, numpy as np
    >>> model = vitreous.create("ViT-Lite-6/4", num_classes=3)
    >>> names, vectors = vitreous.embed(model, np.zeros((2, 48, 64, 3), dtype=np.uint8), device="cpu").array()
    >>> names, vectors.shape
    (['image 0', 'image 1'], torch.Size([2, 256]))
    """
    run = _runner(engine, WorkerSize(workers, worker_cpus, worker_gpus))
    job = Job("embed", None, flip, batch_size, device, precision, decode, merge_tokens=merge_tokens)
    files = find_files(images)
    return cast(Embeddings, compute(job, open_encoder(model, image_size), images, files, run))


def _runner(engine: EngineName, size: WorkerSize) -> Runner | None:
    """Return the function that computes shards, or None to compute in this process."""
    check_choice("engine", engine, ("local", "ray"))
    if engine == "ray":
        import_ray()  # raises if it is missing
        return functools.partial(run_shards, size=size)
    for name, value in (("workers", size.count), ("worker_cpus", size.cpus), ("worker_gpus", size.gpus)):
        if value is not None:
            fail(name, value, "omitted for the engine 'local'")
    return None
