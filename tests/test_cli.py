import dataclasses
import json
import sys

import pytest

from vitreous.cli import VERBS, app, main


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit status of `vitreous` with these arguments."""
    monkeypatch.setattr(sys, "argv", ["vitreous", *arguments])
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def test_every_verb_is_listed_and_has_an_example(monkeypatch, capsys) -> None:  # type: ignore[no-untyped-def]
    assert set(VERBS) == set(app._subcommands)
    for verb in VERBS:
        assert run(monkeypatch, verb, "--help") == 0
        assert f"Example: vitreous {verb}" in capsys.readouterr().out


def test_info_as_json(monkeypatch, capsys) -> None:  # type: ignore[no-untyped-def]
    assert run(monkeypatch, "info", "ViT-Ti/16", "--image-size", "224", "320", "--num-classes", "10", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["parameters"] == 5_717_416 - 192 * 990 - 990 + 192 * 84  # fewer classes, more positions
    assert answer["tokens"] == 1 + 14 * 20
    assert answer["config"]["image_size"] == [224, 320]


@pytest.mark.parametrize("name", ["ViT-B/16", "R50+ViT-B/16", "DINOv2-S/14-reg", "BiT-R50x1"])
def test_info_as_a_table(monkeypatch, capsys, name: str) -> None:  # type: ignore[no-untyped-def]
    assert run(monkeypatch, "info", name) == 0
    out = capsys.readouterr().out
    assert name in out
    assert "GMACs" in out


def test_info_lists_every_preset(monkeypatch, capsys) -> None:  # type: ignore[no-untyped-def]
    from vitreous.model.presets import PRESETS

    assert run(monkeypatch, "info") == 0
    out = capsys.readouterr().out
    assert all(name in out for name in PRESETS)
    assert run(monkeypatch, "info", "--json") == 0
    assert set(json.loads(capsys.readouterr().out)) == set(PRESETS)


def test_the_demo_trains_and_walks_through_the_equations(monkeypatch, capsys, tmp_path) -> None:  # type: ignore[no-untyped-def]
    from vitreous import demo

    short = dataclasses.replace(demo.config(tmp_path / "demo"), epochs=1)
    monkeypatch.setattr(demo, "config", lambda out: short)
    monkeypatch.setattr(demo, "FOLDER", tmp_path / "demo")
    demo.run(tmp_path / "demo")
    out = capsys.readouterr().out
    assert all(shape in out for shape in ("1 x 1 x 8 x 8", "1 x 16 x 128", "1 x 4 x 16 x 16", "1 x 10"))
    assert json.loads((tmp_path / "demo" / "metrics.json").read_text())["count"] == 359
    assert "vitreous predict" in out
    assert (tmp_path / "demo" / "report.html").stat().st_size > 50_000


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["inof"], 2, "there is no verb 'inof' (did you mean 'info'?)"),
        (["info", "--jsn"], 2, "--json"),
        (["info", "--num-classes", "many"], 2, "--num-classes"),
        (["info", "ViT-B16"], 2, "there is no preset 'ViT-B16' (did you mean 'ViT-B/16'?)"),
        (["info", "ViT-B/16", "--image-size", "225"], 2, "nearest sizes that fit are 224 x 224 and 240 x 240"),
        (["info", "ViT-B/16", "--image-size", "1", "2", "3"], 2, "must be one whole number (square) or two"),
        (["info", "ViT-B/16", "--num-classes", "-5"], 2, "num_classes is -5"),
        (["train", "--data", "digit"], 1, "did you mean 'digits'?"),
        (["train", "--data", "digits", "--epochs", "-1"], 2, "epochs is -1.0, but must be a finite number above 0"),
        (["train", "--data", "digits", "--epocs", "1"], 2, "--epochs"),
        (["train"], 2, "data is ''"),
        (["eval", "nowhere", "--data", "digits"], 1, "there is no checkpoint nowhere"),
        (["predict", "nowhere", "nothing.jpg"], 1, "nothing.jpg"),
    ],
)
def test_mistakes(monkeypatch, capsys, arguments: list[str], status: int, message: str) -> None:  # type: ignore[no-untyped-def]
    assert run(monkeypatch, *arguments) == status
    assert message in " ".join(capsys.readouterr().err.split())
