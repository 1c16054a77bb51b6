import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from vitreous.report.html import RunReport, TaskReport, figures_section, samples_section, write_report
from vitreous.report.plots import can_draw
from vitreous.tasks.classification_metrics import Evaluation
from vitreous.tasks.classify import Mistake, evaluation_sections

EVIL = (
    '<script>alert("1")</script>',
    '"><img src=x onerror=alert(2)>',
    "</style><h1>",
    "&lt;b&gt;",
    "猫",
    "\u202egpj.tac",
)


class Reader(HTMLParser):
    def __init__(self, html: str):
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.headings: list[str] = []
        self.text, self.inside = "", ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.inside = tag

    def handle_data(self, data: str) -> None:
        if self.inside == "h2":
            self.headings.append(data)
            self.inside = ""
        self.text += data


def digits(folder: Path, names: tuple[str, ...], wrong: int = 5, draw: bool | None = None) -> RunReport:
    """A report of real images and invented predictions, a few of them wrong."""
    folder.mkdir(parents=True, exist_ok=True)
    data, draw = load_digits(), can_draw() if draw is None else draw
    images = torch.tensor(data.images[:60] * 15.9).byte()[:, None]
    labels = torch.tensor(data.target[:60]).long() % len(names)
    logits = torch.full((60, len(names)), -1.0)
    predicted = labels.clone()
    predicted[:wrong] = (predicted[:wrong] + 1) % len(names)
    logits[torch.arange(60), predicted] = torch.linspace(4, 2, 60)
    evaluation = Evaluation.of(logits, labels, names)
    mistakes = [
        Mistake(
            images[one.index], f"val/{names[one.true]}/0.png", names[one.true], names[one.predicted], one.probability
        )
        for one in evaluation.worst(24)
    ]
    return RunReport(
        title="ViT-Ti/2 on digits",
        task=TaskReport(
            "top-1 0.9",
            "classification",
            {"top1": 1 - wrong / 60, "loss": 0.123, "seconds": 83.0},
            [
                *evaluation_sections(folder, evaluation, mistakes, draw),
                samples_section(folder, images[:32], [names[int(label)] for label in labels[:32]], names, draw),
            ],
        ),
        commands=["vitreous train --data digits"],
        facts={"model": "ViT-Ti/2", "data": "digits", "seed": "0"},
        history=[{"epoch": epoch, "loss": 1 / epoch, "val_top1": 1 - 1 / epoch, "lr": 1e-3} for epoch in range(1, 9)],
        config={"data": "digits", "optim": {"lr": 0.001}, "out": Path("runs/x")},
        unreadable=["train/broken.png"],
        automatic=["batch_size = 64 (60 images)"],
        next_commands=["vitreous predict runs/x/best a.png"],
    )


NAMES = tuple("0123456789")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with a usual report."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    return write_report(folder, digits(folder, NAMES)).parent


def test_report_has_all_sections_in_order(folder: Path) -> None:
    html = (folder / "report.html").read_text(encoding="utf-8")
    read = Reader(html)
    assert read.headings == [
        "Run",
        "Curves",
        "Classes",
        "Confusion",
        "Worst mistakes",
        "Calibration",
        "Training images",
        "Automatic choices",
        "Unreadable files",
        "Configuration",
        "Next steps",
    ]
    shown = [
        "91.7%",
        "1 min 23 s",
        "epoch 8: validation top-1 87.5%",
        "5 of 60 images",
        "batch_size = 64",
        "broken.png",
    ]
    for text in [*shown, '"lr": 0.001', "vitreous predict runs/x/best a.png", "vitreous train --data digits"]:
        assert text in read.text
    for name in ("curves", "confusion", "calibration", "samples", "mistakes"):
        with Image.open(folder / f"{name}.png") as image:
            image.load()
    assert len(html) < 1_000_000


def test_report_needs_no_script_and_no_other_file(folder: Path) -> None:
    read = Reader((folder / "report.html").read_text(encoding="utf-8"))
    tags = {tag for tag, _ in read.elements}
    assert not tags & {"script", "link", "iframe", "object", "base"}
    for tag, attributes in read.elements:
        if tag == "img":
            assert (attributes["src"] or "").startswith("data:image/")
            assert attributes["alt"]
        assert not [key for key in attributes if key.startswith("on")]
    targets = {attributes.get("id") for _, attributes in read.elements}
    links = [(attributes["href"] or "") for tag, attributes in read.elements if tag == "a"]
    assert links
    assert all(link[0] == "#" and link[1:] in targets for link in links)


@pytest.mark.slow
def test_hostile_names_are_escaped_and_shown(tmp_path: Path, folder: Path) -> None:
    report = digits(tmp_path / "evil", EVIL)
    everywhere = " ".join(EVIL)
    report = replace(
        report,
        title=everywhere,
        task=replace(report.task, description=everywhere, headline={EVIL[0]: EVIL[1]}),
        commands=[everywhere, everywhere],
        facts={EVIL[0]: everywhere},
        config={EVIL[0]: everywhere},
        unreadable=[*EVIL, "bytes that are no text: \udcff.jpg"],
        automatic=list(EVIL),
        next_commands=list(EVIL),
    )
    evil = Reader(write_report(tmp_path / "evil", report).read_text(encoding="utf-8"))
    plain = Reader((folder / "report.html").read_text(encoding="utf-8"))
    allowed = {tag for tag, _ in plain.elements}
    assert {tag for tag, _ in evil.elements} <= allowed
    assert {key for _, attributes in evil.elements for key in attributes} <= {
        key for _, attributes in plain.elements for key in attributes
    }
    assert [tag for tag, _ in evil.elements].count("h1") == 1
    for text in EVIL:
        assert text in evil.text


def test_report_of_a_task_without_classes(tmp_path: Path) -> None:
    Image.new("RGB", (40, 20)).save(tmp_path / "rebuilt.png")
    report = RunReport(
        title="masked autoencoder",
        task=TaskReport(
            "loss 0.4",
            "reconstruction",
            {"loss": 0.4},
            [figures_section([("Originals above, reconstructions below.", tmp_path / "rebuilt.png")])],
        ),
        commands=["vitreous train --task mae"],
        facts={},
    )
    read = Reader(write_report(tmp_path / "run", report).read_text(encoding="utf-8"))
    assert read.headings == ["Run", "More figures"]
    assert "reconstructions below" in read.text
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["report.html"]


@pytest.mark.slow
def test_report_without_mistakes(tmp_path: Path) -> None:
    report = replace(digits(tmp_path, NAMES, wrong=0), unreadable=())
    read = Reader(write_report(tmp_path, report).read_text(encoding="utf-8"))
    assert "No classes were confused." in read.text
    assert "Worst mistakes" not in read.headings
    assert "Unreadable files" not in read.headings
    assert (tmp_path / "mistakes.png").exists()


def test_no_sections_if_no_image_is_readable(tmp_path: Path) -> None:
    assert evaluation_sections(tmp_path, Evaluation.of(torch.zeros(3, 10), torch.full((3,), -1))) == []
    assert list(tmp_path.iterdir()) == []


def test_one_epoch_without_validation(tmp_path: Path) -> None:
    report = replace(digits(tmp_path, NAMES, draw=False), history=[{"epoch": 1, "step": 3, "loss": 2.0, "lr": 0.1}])
    assert "Training metrics only" in Reader(write_report(tmp_path, report).read_text("utf-8")).text


def test_two_classes(tmp_path: Path) -> None:
    report = replace(digits(tmp_path, ("cat", "dog"), draw=False), history=())
    assert "cat → dog" in Reader(write_report(tmp_path, report).read_text(encoding="utf-8")).text


@pytest.mark.slow
def test_report_shows_the_first_command_and_every_resume(tmp_path: Path) -> None:
    report = replace(digits(tmp_path, NAMES), commands=["vitreous train --data digits", "vitreous train --resume"])
    text = Reader(write_report(tmp_path, report).read_text(encoding="utf-8")).text
    assert text.index("vitreous train --data digits") < text.index("Resumed once") < text.index("--resume")


@pytest.mark.slow
def test_a_thousand_classes_stay_small(tmp_path: Path) -> None:
    labels = torch.arange(3000) % 1000
    logits = torch.randn(3000, 1000)
    logits[torch.arange(3000), labels] += 4
    names = [f"n{i}" for i in range(1000)]
    report = digits(tmp_path, NAMES)
    sections = evaluation_sections(tmp_path, Evaluation.of(logits, labels, tuple(names)))
    report = replace(report, task=replace(report.task, sections=sections))
    assert write_report(tmp_path, report).stat().st_size < 3_000_000


def test_without_matplotlib_the_page_is_written_without_plots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    read = Reader(write_report(tmp_path, digits(tmp_path, NAMES)).read_text(encoding="utf-8"))
    assert 'pip install "vitreous[plot]"' in read.text
    assert "Worst mistakes" in read.headings
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
