"""`vitreous eval`: a classifier, a segmenter, or a frozen encoder through a probe, measured and printed."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitreous.common.checks import fail, refuse_unused
from vitreous.evaluation.classifier import evaluate_classifier, print_evaluation
from vitreous.evaluation.features import Kind
from vitreous.evaluation.probe import Probe, print_probe, probe_checkpoint
from vitreous.evaluation.segmenter import evaluate_segmenter, print_segmentation
from vitreous.evaluation.setting import Setting
from vitreous.model.segmenter import Segmenter
from vitreous.weights.load import load


@dataclass(frozen=True)
class Probing:
    """What only probes take."""

    features: Kind = "pooled"
    cache: Path | None = None
    neighbours: Sequence[int] = (20,)
    shots: Sequence[int] = ()


def evaluate_files(
    checkpoint: Path,
    data: str,
    setting: Setting,
    probe: Probe | None,
    probing: Probing,
    ignore: Sequence[str],
    as_json: bool,
    out: Path | None,
) -> None:
    refuse_unused(probe is not None, probing, Probing(), "--probe", ("features", "cache"))
    refuse_unused(probe == "knn", probing, Probing(), "--probe knn", ("neighbours",))
    refuse_unused(probe == "fewshot", probing, Probing(), "--probe fewshot", ("shots",))
    refuse_unused(probe is None, setting, Setting(), "a classifier, without --probe", ("decode",))
    if probe is not None:
        if ignore:
            fail("ignore", " ".join(ignore), "left out with --probe: it leaves out classes of pixels")
        print_probe(probe_checkpoint(checkpoint, data, probe, setting, **dataclasses.asdict(probing)), as_json, out)
        return
    model = load(checkpoint, image_size=setting.image_size or None)
    if isinstance(model, Segmenter):
        refuse_unused(False, setting, Setting(), "a classifier", ("decode",))
        print_segmentation(*evaluate_segmenter(model, data, setting, ignore), as_json, out)
        return
    if ignore:
        fail("ignore", " ".join(ignore), "left out for a classifier: it leaves out classes of pixels")
    print_evaluation(*evaluate_classifier(model, data, setting), as_json, out)
