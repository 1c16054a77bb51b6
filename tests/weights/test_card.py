import dataclasses
import json
import re

import pytest

from vitreous.model.config import ResNetConfig, ViTConfig
from vitreous.model.options import Dropout
from vitreous.model.presets import PRESETS
from vitreous.weights.card import front_matter, model_card, plain, title

NASTY = "a|b\n---\n<script>alert(1)</script> *`_ [x](y) \x00 # \\ ${x} ™"


def matter(card: str) -> dict[str, object]:
    """Parse the front matter: `key: JSON` lines between two `---`."""
    lines = card.splitlines()
    assert lines[0] == "---"
    fields = lines[1 : lines.index("---", 1)]
    return {key: json.loads(value) for key, value in (line.split(": ", 1) for line in fields)}


def test_front_matter_has_the_hub_fields() -> None:
    assert matter(front_matter(ViTConfig(), {"license": "apache-2.0"})) == {
        "library_name": "vitreous",
        "pipeline_tag": "image-classification",
        "license": "apache-2.0",
        "tags": ["vitreous", "vision-transformer"],
    }
    fields = matter(front_matter(ResNetConfig(num_classes=0), {}))
    assert fields["pipeline_tag"] == "image-feature-extraction"
    assert "license" not in fields


def test_untrusted_text_is_escaped(small: ViTConfig) -> None:
    config = dataclasses.replace(small, labels=(NASTY, "b", "c", "d", "e"))
    card = model_card(config, NASTY, 1, {"license": NASTY, "metrics": {NASTY: 0.5}, NASTY: {"x": NASTY}})
    assert matter(card)["license"] == NASTY
    body = card.split("\n---\n", 1)[1]
    assert "<script" not in body
    assert "\n---" not in body
    assert "\x00" not in body
    assert [line for line in body.splitlines() if line.startswith("#")] == [
        f"# {plain(NASTY)}",
        "## Usage",
        "## Metrics",
        "## Labels",
        "## Preprocessing",
        "## Provenance",
    ]
    for line in body.splitlines():
        if line.startswith("|"):
            assert len(re.findall(r"(?<!\\)\|", line)) == 3


def test_card_lists_twenty_labels_and_the_total() -> None:
    names = tuple(f"name{i}" for i in range(1000))
    card = model_card(ViTConfig(labels=names), "x", 1, {})
    assert "1,000: name0, name1," in card
    assert "name19 and 980 more" in card
    assert "name20" not in card
    assert "The 1,000 classes have no labels." in model_card(ViTConfig(), "x", 1, {})
    assert "Labels" not in model_card(ViTConfig(num_classes=0), "x", 1, {})


def test_metrics_and_provenance_are_written_as_tables() -> None:
    card = model_card(ViTConfig(), "x", 1, {"metrics": {"top1": 0.97531, "images": 360}, "data": "digits"})
    assert "| top1 | 0.9753 |" in card
    assert "| images | 360 |" in card
    assert "| data | digits |" in card
    assert "Metrics" not in model_card(ViTConfig(), "x", 1, {"metrics": {}})


def test_usage_depends_on_the_task() -> None:
    assert "vitreous predict . image.jpg" in model_card(ViTConfig(), "x", 1, {})
    assert "vitreous embed . image.jpg" in model_card(ViTConfig(num_classes=0), "x", 1, {})


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_recognised(name: str) -> None:
    preset = PRESETS[name]
    config = dataclasses.replace(preset, num_classes=3, labels=("a", "b", "c"))
    if isinstance(config, ViTConfig):
        config = dataclasses.replace(config, dropout=Dropout(hidden=0.1), stochastic_depth=0.1)
    assert title(config) in [other for other in PRESETS if PRESETS[other] == preset]  # SigLIP 2 equals SigLIP


def test_other_shapes_are_summarised(small: ViTConfig) -> None:
    assert title(small) == "ViT (width 32, depth 2, 4 heads, 8 x 8 patches)"
    assert title(ResNetConfig(stages=(1, 1), width=32)) == "BiT ResNet (width 32, stages 1, 1)"
    card = model_card(dataclasses.replace(small, channels=1), "x", 1234, {})
    assert "1,234 parameters. Input: greyscale images of 24 x 32 pixels (13 tokens). Output: 5 classes." in card
