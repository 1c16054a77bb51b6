"""Label errors of CIFAR-10 that `vitreous data check --checkpoint` finds, compared with human judgements.

- mturk/cifar10_mturk.json of github.com/cleanlab/label-errors: five people judged the 275 test images that its authors
  suspected. A label counts as wrong if fewer than three confirmed it. Images that were not judged count as correct, so
  the precision is a lower limit; `judged` is the precision among the first judged images, as many as there are errors.
- data/CIFAR-10_human.pt of github.com/UCSC-REAL/cifar-10-100n (CIFAR-10N): human annotations of the training images.
  They are used as the given labels, and are wrong if they differ from the original labels.

    python -m benchmarks.label_errors dinov2s_reg4.pt --cifar10 cifar10.npz --mturk cifar10_mturk.json \\
        --human CIFAR-10_human.pt --image-size 224
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import tyro
from torch import Tensor

from benchmarks.publish_table import publish
from vitreous.data.sources.base import ArraySource
from vitreous.evaluation.check_data import embed_splits, open_whole_image_encoder
from vitreous.evaluation.features import FeatureSet
from vitreous.evaluation.label_errors import LabelErrors, find_label_errors
from vitreous.inference import Embedder, Precision
from vitreous.weights.io.pickle.read import read_pickle

HUMAN = ("aggre_label", "random_label1", "worse_label")


@dataclass(frozen=True)
class Options:
    """Benchmark options."""

    checkpoint: Annotated[Path, tyro.conf.Positional]
    cifar10: Path  # .npz with x_train, y_train, x_test and y_test, in the official order
    mturk: Path | None = None
    human: Path | None = None
    image_size: int = 224
    count: int | None = None  # first images of each split; all by default
    device: str = "auto"
    precision: Precision = "auto"
    batch_size: int = 64
    out: Path = Path("runs/bench/label_errors.json")


@dataclass(frozen=True)
class Result:
    labels: str
    ranking: str
    images: int
    errors: int
    accuracy: float  # agreement of the classifier with the given labels
    precision_at_100: float
    average_precision: float
    likely: int
    likely_precision: float
    likely_recall: float
    judged_precision: float | None = None


def embed(options: Options, images: np.ndarray) -> Tensor:
    encoder = open_whole_image_encoder(options.checkpoint, options.image_size)
    predictor = Embedder(encoder, options.device, options.batch_size, options.precision, backend="auto")
    source = ArraySource(images, np.zeros(len(images), np.int64), ("",), "cifar10")
    return embed_splits(predictor, {"all": source}).vectors


def rate(name: str, found: LabelErrors, wrong: Tensor, judged: Tensor | None = None) -> list[Result]:
    """Compare two rankings with the truth: probability of the label, and its margin to the best other class."""
    own = found.confidence
    other = found.probabilities.gather(1, found.suggested[:, None])[:, 0]
    results = []
    for ranking, score in (("confidence", own), ("margin", own - other)):
        order = score.argsort(stable=True)
        hits = wrong[order].double()
        precision = hits.cumsum(0) / torch.arange(1, len(hits) + 1)
        likely = torch.zeros_like(wrong)
        likely[order[: int(found.likely.sum())]] = True
        among = None if judged is None else float(hits[judged[order]][: int(wrong.sum())].mean())
        results.append(
            Result(
                name, ranking, len(wrong), int(wrong.sum()), found.accuracy, float(hits[:100].mean()),
                float((precision * hits).sum() / hits.sum()), int(likely.sum()), float(wrong[likely].double().mean()),
                float(likely[wrong].double().mean()), among,
            )
        )  # fmt: skip
    return results


def main(options: Options) -> None:
    arrays, results = np.load(options.cifar10), list[Result]()
    device = torch.device("cuda" if torch.cuda.is_available() and options.device != "cpu" else "cpu")
    if options.mturk is not None:
        vectors, labels = embed(options, arrays["x_test"][: options.count]), arrays["y_test"][: options.count]
        wrong, judged = torch.zeros(2, len(labels), dtype=torch.bool)
        for row in json.loads(options.mturk.read_text()):
            if row["id"] < len(labels):
                assert row["given_original_label"] == labels[row["id"]], "the images are in another order"
                judged[row["id"]], wrong[row["id"]] = True, row["mturk"]["given"] < 3
        found = find_label_errors(FeatureSet(vectors, torch.from_numpy(labels).long()), 10, device=device)
        results += rate("test, original", found, wrong, judged)
    if options.human is not None:
        vectors, human = embed(options, arrays["x_train"][: options.count]), read_pickle(options.human)
        true = torch.from_numpy(arrays["y_train"][: options.count]).long()
        assert torch.equal(human["clean_label"][: len(true)].long(), true), "the images are in another order"
        for key in HUMAN:
            given = human[key][: len(true)].long()
            found = find_label_errors(FeatureSet(vectors, given), 10, device=device)
            results += rate(f"train, {key}", found, given != true)
    columns = ["labels", "ranking", "images", "errors", "agreement", "P@100", "AP", "likely", "precision", "recall"]
    rows = [
        [row.labels, row.ranking, f"{row.images:,}", f"{row.errors:,}", f"{row.accuracy:.1%}",
         f"{row.precision_at_100:.2f}", f"{row.average_precision:.3f}", f"{row.likely:,}",
         f"{row.likely_precision:.1%}", f"{row.likely_recall:.1%}",
         "" if row.judged_precision is None else f"{row.judged_precision:.1%}"]
        for row in results
    ]  # fmt: skip
    title = f"label errors of CIFAR-10 with {options.checkpoint.name} at {options.image_size} px"
    publish(title, [*columns, "judged"], rows, results, options.out)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
