"""All figures of one picture in one HTML file, with what they mean and what they do not, for someone who asks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image
from torch import Tensor

from vitreous.explanation.faithfulness import Faithfulness
from vitreous.explanation.figures import LensRow
from vitreous.explanation.study import Figure, Study
from vitreous.report.colours import css, heat, signed
from vitreous.report.html import (
    TYPES,
    Html,
    bar,
    code,
    definitions,
    details,
    document,
    embedded,
    inner,
    items,
    name,
    plot,
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
    "information from; it need not be what decided the answer, and it is the same whichever class is asked about."
)
BETTER = " Relevance and occlusion are about one class, and occlusion asks the model itself."
TESTED = " None of them is the truth: the test below says, for this picture, how far each can be believed."
WIDE = 1.6  # times as wide as high: such pictures get more room


@dataclass
class Findings:
    """What was found, as far as it was asked for."""

    seen: list[Figure] = field(default_factory=list)
    maps: dict[str, Figure] = field(default_factory=dict)
    faithfulness: dict[str, Faithfulness] = field(default_factory=dict)
    figures: dict[str, list[Figure]] = field(default_factory=dict)  # by method
    distance: Tensor | None = None  # [layers, heads]
    lens: list[LensRow] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def missing(self) -> list[tuple[str, str]]:
        """Reasons, and what is left out for each."""
        reasons = dict.fromkeys(self.left_out.values())
        return [(why, ", ".join(method for method in self.left_out if self.left_out[method] == why)) for why in reasons]

    @property
    def paths(self) -> list[Path]:
        groups = [self.seen, [*self.maps.values()], *self.figures.values()]
        return [figure.path for group in groups for figure in group]


def write_page(study: Study, found: Findings, title: str, facts: Mapping[str, str], command: str) -> Path:
    sections = [
        ("The answer" if study.predictions else "The picture", _answer(study, found)),
        ("Where it looks, and what counts" if "relevance" in found.maps else "Where it looks", _maps(found)),
        ("Can the maps be believed?", _test(found)),
        ("Inside, layer by layer", _drawn(found, "heads", "distance")),
        ("What patches are to the model", _pair(found)),
        ("From layer to layer", _lens(found)),
        ("What it has learned, whatever the picture", _drawn(found, "position", "filters")),
        ("What is left out, and why", _left_out(found)),
        ("How this was made", [definitions(facts.items(), "facts"), code(command)]),
    ]
    about = "What the model sees, and what its answer rests on" if found.seen else "Figures that need no picture"
    told = [(heading, parts, f"part-{number}") for number, (heading, parts) in enumerate(sections) if parts]
    links = [tag("a", heading, href=f"#{anchor}") for heading, _, anchor in told]
    body = [tag("section", tag("h2", heading, id=anchor), *parts) for heading, parts, anchor in told]
    header = tag("header", tag("h1", title), tag("p", about, class_="soft"))
    path = study.folder / "report.html"
    page = document(title, header, tag("nav", *links), tag("main", *body), style=STYLE)
    path.write_text(page, encoding="utf-8", errors="replace")
    return path


# ---- The sections ----------------------------------------------------------------------------------------------------


def _answer(study: Study, found: Findings) -> list[Html]:
    if not found.seen:
        return []
    parts = []
    if study.predictions:
        rows = [
            (name(label.label), inner(bar(label.probability), tag("span", f"{label.probability:.1%}")))
            for label in study.predictions
        ]
        words = "The class that the maps below are about: "
        assert study.target is not None
        parts.append(
            tag(
                "div", table(["class", "probability"], rows), tag("p", words, tag("b", name(study.label(study.target))))
            )
        )
    else:
        parts.append(
            tag(
                "p",
                "This checkpoint has no head: it makes features, and gives a picture no class.",
            )
        )
    room = f"--least: {26 * _wideness(found.seen[0].path):.0f}rem"
    return [tag("div", tag("div", _picture(found.seen[0]), class_="one", style=room), *parts, class_="side")]


def _maps(found: Findings) -> list[Html]:
    if not found.maps:
        return []
    scales = [
        tag("p", "Maps without sign: little", _scale(css(heat())), "much. ", class_="soft"),
        *(
            [tag("p", "Occlusion: more likely without", _scale(css(signed())), "less likely without.", class_="soft")]
            if "occlusion" in found.maps
            else []
        ),
    ]
    words = WARNING + (BETTER if "relevance" in found.maps or "occlusion" in found.maps else "")
    words += TESTED if found.faithfulness else ""
    return [tag("p", words, class_="note"), _side_by_side([*found.maps.values()]), *scales]


def _test(found: Findings) -> list[Html]:
    if not found.faithfulness:
        return []
    random = found.faithfulness["random"]
    rows = [
        (name(key), _verdict(one, random) if key != "random" else "", f"{one.deletion:.3f}", f"{one.insertion:.3f}")
        for key, one in found.faithfulness.items()
    ]
    words = (
        "The areas under the curves: deletion should be low, insertion high, and both better than in random order. One "
        "picture proves little; compare maps over many."
    )
    numbers = table(["map", "", "deletion", "insertion"], rows, text_columns=2, caption=words)
    return [*_drawn(found, "faithfulness"), numbers]


def _verdict(one: Faithfulness, random: Faithfulness) -> str:
    better = (one.deletion < random.deletion) + (one.insertion > random.insertion)
    return ("worse than random", "mixed", "better than random")[better]


def _drawn(found: Findings, *methods: str) -> list[Html]:
    return _charts([figure for method in methods for figure in found.figures.get(method, [])])


def _pair(found: Findings) -> list[Html]:
    pictures = found.figures.get("pca", [])
    return [*([_side_by_side(pictures)] if pictures else []), *_drawn(found, "similarity")]


def _lens(found: Findings) -> list[Html]:
    if not found.lens:
        return []
    rows = [(str(row.layer), name(row.label), f"{row.probability:.1%}", f"{row.of_target:.1%}") for row in found.lens]
    columns = ["after layer", "it would answer", "with", "and the class in question gets"]
    return [*_drawn(found, "lens"), details("Layer by layer, in numbers", table(columns, rows, text_columns=2))]


def _left_out(found: Findings) -> list[Html]:
    return [items(f"{methods}: {reason}" for reason, methods in found.missing)] if found.left_out else []


# ---- Their parts -----------------------------------------------------------------------------------------------------


def _side_by_side(figures: Sequence[Figure]) -> Html:
    """Four in a row; fewer are larger, and so are wide ones."""
    least = (14 if len(figures) > 2 else 20) * _wideness(figures[0].path)
    return tag("div", *map(_picture, figures), class_="maps", style=f"--least: {least:.0f}rem")


def _wideness(path: Path) -> float:
    with Image.open(path) as opened:
        return min(max(opened.width / opened.height / WIDE, 1.0), 2.5)


def _picture(figure: Figure) -> Html:
    """A picture with its name above and its words below; its colours stay as they are on a dark page."""
    image = tag("img", src=_source(figure.path), alt=figure.title)
    return tag("figure", tag("b", figure.title), image, tag("figcaption", figure.caption), class_="shown")


def _charts(figures: Sequence[Figure]) -> list[Html]:
    parts: list[Html] = []
    for figure in figures:
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
