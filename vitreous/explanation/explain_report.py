"""report.html of an explanation: all figures in one file, with their meaning and their limits."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from PIL import Image

from vitreous.explanation import MAPS
from vitreous.explanation.faithfulness import Faithfulness
from vitreous.explanation.figures import Figure
from vitreous.explanation.result import Explanation
from vitreous.report.colours import css, heat, signed
from vitreous.report.html import (
    TYPES,
    Html,
    bar,
    code,
    definitions,
    details,
    embedded,
    inner,
    items,
    name,
    plot,
    sections_page,
    table,
    tag,
)

STYLE = """
h3 { margin: 1.75rem 0 0.25rem; font-size: 1rem; }
.maps { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, var(--least)), 1fr)); gap: 1.25rem;
  margin: 1rem 0; }
.shown { margin: 0; }
.shown img { display: block; max-width: 100%; max-height: 34rem; border-radius: 0.35rem; }
.shown b { display: block; margin-bottom: 0.35rem; }
.sheet { overflow-x: auto; }
.sheet img { display: block; max-width: 100%; height: auto; }
.scale { display: inline-block; width: 9rem; height: 0.75rem; margin: 0 0.5rem; border-radius: 0.375rem;
  vertical-align: middle; }
.note { padding: 0.8rem 1rem; background: var(--card); border-left: 3px solid var(--accent); border-radius: 0.25rem; }
.one { flex: 0 1 var(--least); }
@media (max-width: 40rem) { .sheet img { max-width: none; } }
"""

WARNING = (
    "Attention is not attribution. A bright place in an attention map or a rollout is where the model gathers "
    "information from; it need not be what decided the answer, and it is the same for every class."
)
BETTER = " Relevance and occlusion are about one class, and occlusion measures the model's answer itself."
TESTED = " None of them is the truth: the test below shows, for this image, how far each can be trusted."
WIDE = 1.6  # aspect ratio above which images get more room

Figures = Mapping[str, Sequence[Figure]]


def write_report(
    result: Explanation, figures: Figures, path: Path, title: str, facts: Mapping[str, str], command: str
) -> None:
    subtitle = "What the model uses, and what its answer depends on" if "seen" in figures else "Figures of the weights"
    maps = [figure for key in MAPS for figure in figures.get(key, ())]
    sections = [
        ("The answer" if result.predictions else "The image", _answer(result, figures.get("seen", ()))),
        ("Where it looks, and what counts" if "relevance" in figures else "Where it looks", _maps(result, maps)),
        ("Can the maps be trusted?", _tests(result, figures)),
        ("Inside, layer by layer", _charts(figures, "heads", "distance")),
        ("Patches as the model represents them", _patches(figures)),
        ("From layer to layer", _lens(result, figures)),
        ("What the model has learned, whatever the image", _charts(figures, "position", "filters")),
        ("Skipped, and why", _skipped(result)),
        ("How this was made", [definitions(facts.items(), "facts"), code(command)]),
    ]
    page = sections_page(title, sections, tag("p", subtitle, class_="soft"), style=STYLE)
    path.write_text(page, encoding="utf-8", errors="replace")


# ---- The sections ----------------------------------------------------------------------------------------------------


def _answer(result: Explanation, seen: Sequence[Figure]) -> list[Html]:
    if not seen:
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
    room = f"--least: {26 * _wideness(seen[0].path):.0f}rem"
    return [tag("div", tag("div", _image(seen[0]), class_="one", style=room), answer, class_="side")]


def _maps(result: Explanation, figures: Sequence[Figure]) -> list[Html]:
    if not figures:
        return []
    scales = [tag("p", "Maps without sign: low", _scale(css(heat())), "high. ", class_="soft")]
    if "occlusion" in result.maps:
        signs = ("Occlusion: more likely without", _scale(css(signed())), "less likely without.")
        scales.append(tag("p", *signs, class_="soft"))
    words = WARNING + (BETTER if "relevance" in result.maps or "occlusion" in result.maps else "")
    words += TESTED if result.faithfulness else ""
    return [tag("p", words, class_="note"), _side_by_side(figures), *scales]


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
    return [*_charts(figures, "faithfulness"), numbers]


def _verdict(one: Faithfulness, random: Faithfulness) -> str:
    better = (one.deletion < random.deletion) + (one.insertion > random.insertion)
    return ("worse than random", "mixed", "better than random")[better]


def _patches(figures: Figures) -> list[Html]:
    colours = figures.get("pca", ())
    return [*([_side_by_side(colours)] if colours else []), *_charts(figures, "similarity")]


def _lens(result: Explanation, figures: Figures) -> list[Html]:
    if not result.lens:
        return []
    rows = [(str(row.layer), name(row.label), f"{row.probability:.1%}", f"{row.of_target:.1%}") for row in result.lens]
    columns = ["after layer", "prediction", "probability", "probability of the explained class"]
    return [*_charts(figures, "lens"), details("Numbers of each layer", table(columns, rows, text_columns=2))]


def _skipped(result: Explanation) -> list[Html]:
    reasons = [f"{', '.join(methods)}: {reason}" for reason, methods in result.skipped_by_reason().items()]
    return [items(reasons)] if reasons else []


# ---- Their parts -----------------------------------------------------------------------------------------------------


def _side_by_side(figures: Sequence[Figure]) -> Html:
    """Four images in a row; fewer are larger, and so are wide ones."""
    least = (14 if len(figures) > 2 else 20) * _wideness(figures[0].path)
    return tag("div", *map(_image, figures), class_="maps", style=f"--least: {least:.0f}rem")


def _wideness(path: Path) -> float:
    with Image.open(path) as opened:
        return min(max(opened.width / opened.height / WIDE, 1.0), 2.5)


def _image(figure: Figure) -> Html:
    """An image with title and caption; unlike charts, its colours are not inverted on a dark page."""
    image = tag("img", src=_source(figure.path), alt=figure.title)
    return tag("figure", tag("b", figure.title), image, tag("figcaption", figure.caption), class_="shown")


def _charts(figures: Figures, *methods: str) -> list[Html]:
    parts: list[Html] = []
    for figure in (figure for method in methods for figure in figures.get(method, ())):
        parts.append(tag("h3", figure.title))
        if figure.kind == "chart":
            parts.append(plot(figure.path, figure.title, figure.caption))
            continue
        with Image.open(figure.path) as opened:
            size = {"width": str(round(opened.width * 0.8)), "height": str(round(opened.height * 0.8))}
        image = tag("img", src=_source(figure.path), alt=figure.title, **size)
        parts.append(tag("figure", tag("div", image, class_="sheet"), tag("figcaption", figure.caption)))
    return parts


def _source(path: Path) -> str:
    return embedded(path.read_bytes(), TYPES[path.suffix])


def _scale(gradient: str) -> Html:
    return tag("span", class_="scale", style=f"background: {gradient}")
