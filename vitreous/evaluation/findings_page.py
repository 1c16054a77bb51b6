"""HTML page with thumbnails of the suspicious images that were found with a model."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from vitreous.common.atomic_files import atomic_file
from vitreous.common.text import plural
from vitreous.data.doctor.check import DataReport
from vitreous.data.doctor.findings import ModelFindings, NearDuplicates, Sample
from vitreous.data.image import UnreadableImage, decode
from vitreous.data.sources.base import Source
from vitreous.report.html import THUMBNAIL, Html, name, photos, sections_page, tag

MOST = 200  # maximum number of images per section


def write_page(path: Path, report: DataReport, findings: ModelFindings, splits: Mapping[str, Source]) -> Path:
    """Write the page with the findings to `path`. The folder is created if necessary."""
    rows = {split: {source.name(row): row for row in range(len(source))} for split, source in splits.items()}

    def image(sample: Sample) -> Tensor | None:
        source = splits[sample.split]
        try:
            stored = source.image(rows[sample.split][sample.name])
            return decode(stored, at_least=(THUMBNAIL, THUMBNAIL), value_range=report.value_range)
        except (UnreadableImage, OSError):
            return None

    def grid(samples: Sequence[Sample], captions: Sequence[Html]) -> Html:
        shown = [(pixels, sample.name, caption) for sample, caption in zip(samples, captions, strict=True)
                 if (pixels := image(sample)) is not None]  # fmt: skip
        return photos([pixels for pixels, _, _ in shown], [alt for _, alt, _ in shown], [text for _, _, text in shown])

    def about(sample: Sample) -> Html:
        return tag("span", name(sample.name), tag("br"), f"{sample.split} ", name(sample.label))

    def duplicates(groups: Sequence[NearDuplicates]) -> list[Html]:
        content = []
        for group in groups[: MOST // 2]:
            captions = [about(sample) for sample in group.samples[:8]]
            content += [tag("p", f"correlation {group.correlation:.2f}"), grid(group.samples[:8], captions)]
        return content

    errors, outliers = findings.label_errors[:MOST], findings.outliers[:MOST]
    suggestions = [
        tag(
            "span", name(error.name), tag("br"),
            "label ", tag("b", name(error.label)), f" ({error.confidence:.3f})", tag("br"),
            "suggested ", tag("b", name(error.suggested)), f" ({error.probability:.3f})",
        )
        for error in errors
    ]  # fmt: skip
    distances = [tag("span", about(outlier), tag("br"), f"distance {outlier.distance:.3f}") for outlier in outliers]
    accuracy = (
        "" if findings.accuracy is None else f", whose classifier agrees with {findings.accuracy:.1%} of the labels"
    )
    sections = [
        ("Likely label errors", [_note(len(findings.label_errors)), grid(errors, suggestions)] if errors else []),
        ("Near duplicates in different splits", duplicates(findings.near_leaks)),
        ("Near duplicates within a split", duplicates(findings.near_duplicates)),
        ("Outliers", [_note(len(findings.outliers)), grid(outliers, distances)] if outliers else []),
    ]
    text = f"Found with {findings.checkpoint}{accuracy}. Check each image before you change or delete it."
    page = sections_page(f"{report.name}: suspicious images", sections, tag("p", text, class_="soft"))
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as temporary:
        temporary.write_text(page, encoding="utf-8", errors="replace")  # file names may be invalid Unicode
    return path


def _note(count: int) -> Html:
    more = f" Only the first {MOST} are shown." if count > MOST else ""
    return tag("p", f"{plural(count, 'image')}, the most suspicious first.{more}")
