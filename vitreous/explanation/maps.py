"""Four answers to "where is it?", each laid over the picture, and a test of how far each can be believed."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from torch import Tensor

from vitreous.explanation import render
from vitreous.explanation.capture import attention_map
from vitreous.explanation.charts import faithfulness_chart
from vitreous.explanation.faithfulness import Faithfulness, as_patches, faithfulness, random_faithfulness
from vitreous.explanation.occlusion import occlusion
from vitreous.explanation.relevance import relevance
from vitreous.explanation.rollout import rollout_map
from vitreous.explanation.study import Figure, Study
from vitreous.model.pooling import AttentionPooling
from vitreous.report.style import can_draw

MAPS = ("relevance", "occlusion", "rollout", "attention")


@dataclass(frozen=True)
class DrawnMap:
    """A map with one value for each patch, and the picture of it."""

    values: Float[Tensor, "gh gw"]
    figure: Figure


def draw_map(study: Study, name: str) -> DrawnMap:
    image, canvas = study.pictured
    match name:
        case "relevance":
            values = relevance(study.model, image, study.target)[0]
            title, caption = "Relevance", _about_relevance(study, bool(values.any()))
        case "occlusion":
            assert study.target is not None
            pixels = occlusion(study.model, image, study.target, batch_size=study.batch_size)
            values = as_patches(pixels, study.model.config.patch_stride)
            drawn = render.signed_overlay(canvas, values.cpu().numpy())
            return DrawnMap(values, Figure(study.write(name, drawn), "Occlusion", _about_occlusion(study, pixels)))
        case "rollout":
            values = rollout_map(study.model, image)[0]
            title = "Attention rollout"
            caption = (
                "Attention followed from layer to layer, with what tokens keep of themselves: from where information "
                "may have come. It knows no class."
            )
        case "attention":
            values = attention_map(study.model, image)[0]
            title, caption = "Attention, last layer", _about_attention(study)
    drawn = render.overlay(canvas, values.cpu().numpy())
    return DrawnMap(values, Figure(study.write(name, drawn), title, caption))


def _about_relevance(study: Study, found: bool) -> str:
    assert study.target is not None
    label = study.label(study.target)
    if not found:
        return f"Nothing in the picture speaks for “{label}” by this measure: the map is empty."
    return (
        f"What speaks for “{label}”: attention, where the score of this class would rise with it, through all layers. "
        "Another class has another map."
    )


def _about_occlusion(study: Study, drops: Tensor) -> str:
    assert study.target is not None
    low, high = float(drops.min()), float(drops.max())
    label = study.label(study.target)
    words = (
        f"The test on the picture itself: a plain window is moved over it. Red: hiding this makes “{label}” less likely"
    )
    return f"{words} ({_points(high)}); blue: more likely ({_points(-low)})."


def _points(change: float) -> str:
    """Of a probability, in hundredths.

    >>> _points(0.5137), _points(0.0004), _points(-0.1)
    ('by up to 51.4 points', 'by less than 0.1 points', 'nowhere')
    """
    if change <= 0:
        return "nowhere"
    return f"by up to {100 * change:.1f} points" if change >= 0.001 else "by less than 0.1 points"


def _about_attention(study: Study) -> str:
    if isinstance(study.model.pool, AttentionPooling):
        who = "the query looks that pools the tokens into one vector"
    else:
        who = "the class token looks" if study.model.config.class_token else "patches look, on average,"
    return f"Where {who} at the end, the mean of all heads. It tells where the model gathers, not why."


# ---- Put to the test -------------------------------------------------------------------------------------------------


def put_to_the_test(study: Study, drawn: dict[str, DrawnMap]) -> tuple[dict[str, Faithfulness], list[Figure]]:
    """Of every map, and of patches in random order, which a map must beat to be worth anything."""
    image, _ = study.pictured
    assert study.target is not None
    found = {
        name: faithfulness(study.model, image, study.target, one.values, batch_size=study.batch_size)
        for name, one in drawn.items()
    }
    found["random"] = random_faithfulness(study.model, image, study.target)
    if not can_draw():
        return found, []
    path = study.folder / "faithfulness.png"
    faithfulness_chart(path, found)
    caption = (
        "Left: the patches that a map calls important are painted over first; the sooner the probability falls, the "
        "better the map. Right: they are shown first, on a blurred picture; the sooner it rises, the better. Grey: "
        "patches in random order."
    )
    return found, [Figure(path, "Maps put to the test", caption, "chart")]


def peak(values: Float[Tensor, "gh gw"]) -> tuple[int, int]:
    """Row and column of the largest value."""
    row, column = np.unravel_index(int(values.argmax()), tuple(values.shape))
    return int(row), int(column)
