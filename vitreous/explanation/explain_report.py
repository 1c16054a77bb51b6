"""report.html of an explanation: all figures in one file, with their meaning and their limits."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from vitreous.explanation import MAPS
from vitreous.explanation.faithfulness import Faithfulness
from vitreous.explanation.figures import Figure
from vitreous.explanation.result import Explanation
from vitreous.report.html import Html, bar, code, definitions, details, inner, items, name, plot, table, tag
from vitreous.report.html import sections_page as page_of
from vitreous.report.plots import css, heat, signed

WARNING = (
    "Attention is not attribution. A bright place in an attention map or a rollout is where the model gathers "
    "information from; it need not be what decided the answer, and it is the same for every class."
)
BETTER = " Relevance and occlusion are about one class, and occlusion measures the model's answer itself."
TESTED = " None of them is the truth: the test below shows, for this image, how far each can be trusted."
SCALES = {"map": 1.0, "sheet": 0.8, "chart": 0.6}  # charts are drawn for screens of high density

Figures = Mapping[str, Sequence[Figure]]


def write_report(
    result: Explanation, figures: Figures, path: Path, title: str, facts: Mapping[str, str], command: str
) -> None:
    subtitle = "What the model uses, and what its answer depends on" if "seen" in figures else "Figures of the weights"
    skipped = [f"{', '.join(methods)}: {reason}" for reason, methods in result.skipped_by_reason().items()]
    sections = [
        ("The answer" if result.predictions else "The image", _answer(result, figures)),
        ("Where it looks, and what counts" if "relevance" in figures else "Where it looks", _maps(result, figures)),
        ("Can the maps be trusted?", _tests(result, figures)),
        ("Inside, layer by layer", _drawn(figures, "heads", "distance")),
        ("Patches as the model represents them", _drawn(figures, "pca", "similarity")),
        ("From layer to layer", _lens(result, figures)),
        ("What the model has learned, whatever the image", _drawn(figures, "position", "filters")),
        ("Skipped, and why", [items(skipped)] if skipped else []),
        ("How this was made", [definitions(facts.items(), "facts"), code(command)]),
    ]
    page = page_of(title, sections, tag("p", subtitle, class_="soft"))
    path.write_text(page, encoding="utf-8", errors="replace")


def _answer(result: Explanation, figures: Figures) -> list[Html]:
    if "seen" not in figures:
        return []
    if result.predictions:
        rows = [
            (name(label.label), inner(bar(label.probability), tag("span", f"{label.probability:.1%}")))
            for label in result.predictions
        ]
        explained = tag("p", "Class explained by the maps below: ", tag("b", name(str(result.label))))
        answer = tag("div", table(["class", "probability"], rows), explained)
    else:
        answer = tag("p", "This checkpoint has no head: it computes features and does not classify.")
    return [tag("div", *map(_figure, figures["seen"]), answer, class_="side")]


def _maps(result: Explanation, figures: Figures) -> list[Html]:
    if not result.maps:
        return []
    words = WARNING + (BETTER if "relevance" in result.maps or "occlusion" in result.maps else "")
    words += TESTED if result.faithfulness else ""
    scales = [tag("p", "Maps without sign: low", _scale(css(heat())), "high. ", class_="soft")]
    if "occlusion" in result.maps:
        signs = ("Occlusion: more likely without", _scale(css(signed())), "less likely without.")
        scales.append(tag("p", *signs, class_="soft"))
    return [tag("p", words, class_="note"), *_drawn(figures, *MAPS), *scales]


def _scale(gradient: str) -> Html:
    return tag("span", class_="scale", style=f"background: {gradient}")


def _tests(result: Explanation, figures: Figures) -> list[Html]:
    if not result.faithfulness:
        return []
    random = result.faithfulness["random"]
    rows = [
        (name(key), _verdict(one, random) if key != "random" else "", f"{one.deletion:.3f}", f"{one.insertion:.3f}")
        for key, one in result.faithfulness.items()
    ]
    words = (
        "Areas under the curves: deletion should be low, insertion high, and both better than in random order. One "
        "image proves little; compare maps over many."
    )
    numbers = table(["map", "", "deletion", "insertion"], rows, text_columns=2, caption=words)
    return [*_drawn(figures, "faithfulness"), numbers]


def _verdict(one: Faithfulness, random: Faithfulness) -> str:
    better = (one.deletion < random.deletion) + (one.insertion > random.insertion)
    return ("worse than random", "mixed", "better than random")[better]


def _lens(result: Explanation, figures: Figures) -> list[Html]:
    if not result.lens:
        return []
    rows = [(str(row.layer), name(row.label), f"{row.probability:.1%}", f"{row.of_target:.1%}") for row in result.lens]
    columns = ["after layer", "prediction", "probability", "probability of the explained class"]
    return [*_drawn(figures, "lens"), details("Numbers of each layer", table(columns, rows, text_columns=2))]


def _drawn(figures: Figures, *methods: str) -> list[Html]:
    """Maps side by side; sheets and charts below each other."""
    found = [figure for method in methods for figure in figures.get(method, ())]
    maps = [_figure(figure) for figure in found if figure.kind == "map"]
    others = [_figure(figure) for figure in found if figure.kind != "map"]
    return [*([tag("div", *maps, class_="maps")] if maps else []), *others]


def _figure(figure: Figure) -> Html:
    return plot(figure.path, figure.title, figure.caption, figure.title, figure.kind, SCALES[figure.kind])
