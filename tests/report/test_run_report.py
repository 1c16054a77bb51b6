import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from vitreous.report.run_report import Mistake, RunReport, write_report
from vitreous.tasks.classification_metrics import Evaluation

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


def digits(names: tuple[str, ...], wrong: int = 5) -> RunReport:
    """A report about real pictures and invented answers, a few of them wrong."""
    data = load_digits()
    pictures = torch.tensor(data.images[:60] * 15.9).byte()[:, None]
    labels = torch.tensor(data.target[:60]).long() % len(names)
    logits = torch.full((60, len(names)), -1.0)
    answers = labels.clone()
    answers[:wrong] = (answers[:wrong] + 1) % len(names)
    logits[torch.arange(60), answers] = torch.linspace(4, 2, 60)
    evaluation = Evaluation.of(logits, labels)
    mistakes = [
        Mistake(
            pictures[one.index], f"val/{names[one.true]}/0.png", names[one.true], names[one.predicted], one.probability
        )
        for one in evaluation.worst(24)
    ]
    return RunReport(
        title="ViT-Ti/2 on digits",
        task="classification",
        command="vitreous train --data digits",
        headline={"top1": 1 - wrong / 60, "loss": 0.123, "seconds": 83.0},
        facts={"model": "ViT-Ti/2", "data": "digits", "seed": "0"},
        history=[{"epoch": epoch, "loss": 1 / epoch, "val_top1": 1 - 1 / epoch, "lr": 1e-3} for epoch in range(1, 9)],
        config={"data": "digits", "optim": {"lr": 0.001}, "out": Path("runs/x")},
        evaluation=evaluation,
        classes=names,
        samples=pictures[:32],
        sample_labels=[names[int(label)] for label in labels[:32]],
        mistakes=mistakes,
        unreadable=["train/broken.png"],
        defaults_chosen=["batch size 64: fits 60 pictures"],
        next_commands=["vitreous predict runs/x/best a.png"],
    )


NAMES = tuple("0123456789")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with a usual report."""
    return write_report(tmp_path_factory.mktemp("runs") / "run", digits(NAMES)).parent


def test_one_file_tells_everything_in_order(folder: Path) -> None:
    html = (folder / "report.html").read_text(encoding="utf-8")
    read = Reader(html)
    assert read.headings == [
        "What was trained, on what",
        "Curves",
        "Class by class",
        "What is taken for what",
        "Worst mistakes",
        "Does it know what it knows?",
        "Pictures as the model saw them",
        "Defaults that were chosen",
        "Unreadable files",
        "Configuration",
        "What to try next",
    ]
    told = [
        "91.7%",
        "1 min 23 s",
        "epoch 8: validation top-1 87.5%",
        "5 of 60 pictures",
        "batch size 64: fits",
        "broken.png",
    ]
    for words in [*told, '"lr": 0.001', "vitreous predict runs/x/best a.png", "vitreous train --data digits"]:
        assert words in read.text
    for name in ("curves", "confusion", "calibration", "samples", "mistakes"):
        with Image.open(folder / f"{name}.png") as image:
            image.load()
    assert len(html) < 1_000_000


def test_it_needs_no_script_and_no_other_file(folder: Path) -> None:
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


def test_evil_names_are_harmless_and_shown(tmp_path: Path, folder: Path) -> None:
    report = digits(EVIL)
    everywhere = " ".join(EVIL)
    report = replace(
        report,
        title=everywhere,
        task=everywhere,
        command=everywhere,
        headline={EVIL[0]: EVIL[1]},
        facts={EVIL[0]: everywhere},
        config={EVIL[0]: everywhere},
        unreadable=[*EVIL, "bytes that are no text: \udcff.jpg"],
        defaults_chosen=list(EVIL),
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


def test_a_task_without_classes_has_a_report_too(tmp_path: Path) -> None:
    Image.new("RGB", (40, 20)).save(tmp_path / "rebuilt.png")
    report = RunReport(
        title="masked autoencoder",
        task="reconstruction",
        command="vitreous train --task mae",
        headline={"loss": 0.4},
        facts={},
        extra_figures=[("Originals above, reconstructions below.", tmp_path / "rebuilt.png")],
    )
    read = Reader(write_report(tmp_path / "run", report).read_text(encoding="utf-8"))
    assert read.headings == ["What was trained, on what", "More figures"]
    assert "reconstructions below" in read.text
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["report.html"]


def test_no_mistakes_are_no_problem(tmp_path: Path) -> None:
    report = replace(digits(NAMES, wrong=0), mistakes=(), unreadable=())
    read = Reader(write_report(tmp_path, report).read_text(encoding="utf-8"))
    assert "Nothing was taken for anything else." in read.text
    assert "Worst mistakes" not in read.headings
    assert "Unreadable files" not in read.headings
    assert (tmp_path / "mistakes.png").exists()


def test_nothing_readable_leaves_the_evaluation_out(tmp_path: Path) -> None:
    nothing = Evaluation.of(torch.zeros(3, 10), torch.full((3,), -1))
    read = Reader(
        write_report(tmp_path, replace(digits(NAMES), evaluation=nothing, mistakes=(), samples=None)).read_text("utf-8")
    )
    assert "Class by class" not in read.headings


def test_one_epoch_without_validation(tmp_path: Path) -> None:
    report = replace(
        digits(NAMES), evaluation=None, samples=None, history=[{"epoch": 1, "step": 3, "loss": 2.0, "lr": 0.1}]
    )
    assert "there was no evaluation" in Reader(write_report(tmp_path, report).read_text("utf-8")).text


def test_two_classes(tmp_path: Path) -> None:
    assert (
        "cat → dog"
        in Reader(
            write_report(tmp_path, replace(digits(("cat", "dog")), history=(), samples=None)).read_text(
                encoding="utf-8"
            )
        ).text
    )


def test_a_thousand_classes_stay_small(tmp_path: Path) -> None:
    labels = torch.arange(3000) % 1000
    logits = torch.randn(3000, 1000)
    logits[torch.arange(3000), labels] += 4
    names = [f"n{i}" for i in range(1000)]
    report = replace(digits(NAMES), evaluation=Evaluation.of(logits, labels), classes=names, mistakes=(), samples=None)
    assert write_report(tmp_path, report).stat().st_size < 3_000_000


def test_without_matplotlib_the_page_is_written_without_plots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    read = Reader(write_report(tmp_path, digits(NAMES)).read_text(encoding="utf-8"))
    assert "pip install vitreous[plot]" in read.text
    assert "Worst mistakes" in read.headings
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
