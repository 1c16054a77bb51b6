import contextlib
import io
import re
import subprocess
import sys

import pytest
from rich.console import Console

from vitreous.training.progress import ProgressDisplay


class Clock:
    """Clock that is advanced by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def screen(terminal: bool, width: int = 80, encoding: str | None = None) -> Console:
    file = io.StringIO() if encoding is None else io.TextIOWrapper(io.BytesIO(), encoding)
    environment = {"TERM": "xterm-256color"}  # whatever terminal the tests themselves run in
    return Console(file=file, force_terminal=terminal, width=width, _environ=environment)


def shown(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def run(
    progress: ProgressDisplay, clock: Clock, seconds: float, last: int | None = None, evaluation: float = 0
) -> None:
    """All steps from the start, an evaluation at the end of every epoch."""
    with progress:
        for step in range(progress.start_step + 1, (last or progress.total_steps) + 1):
            clock.now += seconds
            progress.step(step, loss=1 / step, lr=3e-4, images_per_second=1234.5, metrics={"top1": 0.5})
            if step % progress.steps_per_epoch == 0:
                clock.now += evaluation
                progress.epoch(step // progress.steps_per_epoch, {"loss": 1 / step, "val_top1": 0.9123})


def test_one_plain_line_per_epoch() -> None:
    console, clock = screen(terminal=False), Clock()
    run(ProgressDisplay(60, 20, 3, console=console, clock=clock), clock, seconds=0.1)
    lines = shown(console).splitlines()
    assert "\x1b" not in shown(console)
    assert [line.split("  ")[0] for line in lines if line.startswith("epoch")] == [
        "epoch 1/3",
        "epoch 2/3",
        "epoch 3/3",
    ]
    assert "loss 0.050  val top-1 91.2%" in lines[1]
    assert "left" in lines[1]
    assert "left" not in lines[-1]
    assert len(lines) == 4  # and the estimate


def test_plain_lines_at_most_one_per_minute_within_an_epoch() -> None:
    console, clock = screen(terminal=False), Clock()
    run(ProgressDisplay(1000, 1000, 1, console=console, clock=clock), clock, seconds=1)
    lines = shown(console).splitlines()
    within = [line for line in lines if "step" in line]
    assert 14 <= len(within) <= 1000 / 60
    assert re.search(
        r"^epoch 1/1  step \d+/1,000  loss 0\.\d+  top-1 50.0%  lr 3.0e-04  1,23\d images/s  \d+ min", within[0]
    )


def test_the_time_is_estimated_before_the_first_epoch_ends() -> None:
    console, clock = screen(terminal=False), Clock()
    run(ProgressDisplay(2000, 100, 20, console=console, clock=clock), clock, seconds=0.09, last=60)
    assert shown(console).strip() == "about 3 min for 20 epochs and their evaluation"


def test_the_estimate_for_one_epoch_is_in_the_singular() -> None:
    console, clock = screen(terminal=False), Clock()
    run(ProgressDisplay(2000, 2000, 1, console=console, clock=clock), clock, seconds=0.09, last=60)
    assert shown(console).splitlines()[0].endswith(" for 1 epoch and its evaluation")


def test_slow_first_step_does_not_affect_the_estimate() -> None:
    console, clock = screen(terminal=False), Clock()
    progress = ProgressDisplay(1000, 100, 10, console=console, clock=clock)
    with progress:
        clock.now += 50  # compiling
        progress.step(1, 1.0, 0.1, 10.0, {})
        assert shown(console) == ""
        for step in range(2, 40):
            clock.now += 0.5
            progress.step(step, 1.0, 0.1, 10.0, {})
    assert shown(console).startswith("about 8 min for 10 epochs")


def test_short_epochs_are_estimated_at_the_end_of_the_first() -> None:
    console, clock = screen(terminal=False), Clock()
    run(ProgressDisplay(40, 2, 20, console=console, clock=clock), clock, seconds=0.01)
    lines = shown(console).splitlines()
    assert lines[0].startswith("about 1 s for 20 epochs")
    assert len(lines) == 21


def test_epochs_without_displayed_steps_are_estimated_too() -> None:
    """If only some steps are displayed, an epoch may end between two of them."""
    console, clock = screen(terminal=False), Clock()
    with ProgressDisplay(100, 10, 10, console=console, clock=clock) as progress:
        for epoch in (1, 2):
            clock.now += 30
            progress.epoch(epoch, {"loss": 0.5})
    lines = shown(console).splitlines()
    assert lines[0].startswith("about 5 min for 10 epochs")
    assert lines[1:] == ["epoch 1/10  loss 0.500  4 min 30 s left", "epoch 2/10  loss 0.500  4 min left"]


def test_short_epochs_without_evaluation_print_few_lines() -> None:
    console, clock = screen(terminal=False), Clock()
    with ProgressDisplay(80, 2, 40, console=console, clock=clock) as progress:
        for epoch in range(1, 41):
            clock.now += 1
            progress.epoch(epoch, {"loss": 0.5} | ({"val_top1": 0.5} if epoch in (5, 20) else {}))
    lines = shown(console).splitlines()[1:]
    assert [line.split("  ")[0] for line in lines] == [f"epoch {epoch}/40" for epoch in (1, 5, 15, 20, 30, 40)]


def test_finished_runs_are_not_estimated() -> None:
    console, clock = screen(terminal=False), Clock()
    run(ProgressDisplay(1, 1, 1, console=console, clock=clock), clock, seconds=0.1)
    assert shown(console).splitlines() == ["epoch 1/1  loss 1.000  val top-1 91.2%"]


def test_a_resumed_run_counts_from_its_step() -> None:
    console, clock = screen(terminal=False), Clock()
    run(ProgressDisplay(100, 10, 10, start_step=55, console=console, clock=clock), clock, seconds=60)
    lines = shown(console).splitlines()
    assert "step 6/10" in lines[0]
    assert lines[1] == "about 45 min for the remaining 4.5 epochs and their evaluation"
    assert lines[-1].startswith("epoch 10/10")


def test_time_left_includes_evaluation() -> None:
    console, clock = screen(terminal=False), Clock()
    run(ProgressDisplay(100, 10, 10, console=console, clock=clock), clock, seconds=0.1, last=50, evaluation=9)
    last = shown(console).splitlines()[-1]
    assert re.search(r"epoch 5/10 .* 5\d s left", last)  # 5 more epochs of 1 + 9 seconds


def test_first_estimate_includes_the_expected_evaluations() -> None:
    console, clock = screen(terminal=False), Clock()
    progress = ProgressDisplay(1200, 100, 12, evaluation=0.5, console=console, clock=clock)
    run(progress, clock, seconds=0.1, last=200, evaluation=5)
    lines = shown(console).splitlines()
    assert lines[0] == "about 3 min for 12 epochs and their evaluation"  # 2 minutes of steps
    assert re.search(r"2 min 4\d s left", lines[1])  # 11 epochs of 10 + 5 seconds
    assert re.search(r"2 min 3\d s left", lines[2])


def test_bar_shows_the_batches_of_an_evaluation() -> None:
    console = screen(terminal=True)
    with ProgressDisplay(10, 10, 1, console=console) as progress:
        assert progress.bars is not None
        batches = progress.evaluating(["a", "b"], 2)
        assert next(batches) == "a"
        progress.bars.live.refresh()
        assert list(batches) == ["b"]
    assert "evaluating 1/2" in shown(console)


def test_epoch_fits_into_80_columns_and_long_lines_break_at_spaces() -> None:
    console, clock = screen(terminal=True), Clock()
    progress = ProgressDisplay(100_000, 1000, 100, console=console, clock=clock)
    metrics = {"train_loss": 12.345, "val_loss": 12.345, "val_miou": 0.9123}
    with progress:
        clock.now += 3000
        progress.epoch(99, metrics)
        progress.print("word " * 30)
    lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in re.split(r"[\r\n]+", shown(console))]
    assert any(line.startswith("epoch 99/100") and line.rstrip().endswith("left") for line in lines)
    assert all(set(line.split()) == {"word"} for line in lines if "wor" in line)


@pytest.mark.parametrize(("total", "each", "epochs"), [(0, 0, 0), (0, 10, 1), (3, 0, 1), (25, 10, 2.5), (1, 1, 1)])
@pytest.mark.parametrize("terminal", [False, True])
def test_unusual_numbers_of_steps(total: int, each: int, epochs: float, terminal: bool) -> None:
    console, clock = screen(terminal), Clock()
    run(ProgressDisplay(total, each, epochs, console=console, clock=clock), clock, seconds=1)
    if epochs == 2.5:
        assert "epoch 3/3" in shown(console) or not terminal


def test_bars_on_a_terminal() -> None:
    console, clock = screen(terminal=True), Clock()
    progress = ProgressDisplay(100, 20, 5, console=console, clock=clock)
    with progress:
        for step in range(1, 31):
            clock.now += 1
            progress.step(step, 0.25, 3e-4, 512.0, {"top1": 0.875})
        assert progress.bars is not None
        progress.bars.live.refresh()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown(console))
    assert "epoch 2/5" in text
    assert "10/20" in text
    assert "30%" in text
    assert "1 min 10 s left" in text
    assert "loss 0.250 · top-1 87.5% · lr 3.0e-04 · 512 images/s" in text
    assert "about 2 min for 5 epochs" in text
    assert max(map(len, text.splitlines())) <= 80


def test_messages_stay_above_the_bars_and_are_not_markup() -> None:
    console = screen(terminal=True)
    with ProgressDisplay(10, 10, 1, console=console) as progress:
        progress.step(1, 1.0, 0.1, 10.0, {})
        progress.print("cannot read [red]a.jpg[/red]\x1b[2J\nnext")
        progress.epoch(1, {"val_top1": 0.5, "note": "best so far"})
    text = shown(console)
    assert "cannot read [red]a.jpg[/red] [2J next" in text  # neither the escape nor the line break came through
    assert "epoch 1/1  val top-1 50.0%  note best so far" in text
    assert text.endswith("\x1b[2K")  # the bars are wiped at the end


def test_long_lines_are_not_wrapped_in_a_pipe() -> None:
    console = screen(terminal=False, width=40)
    with ProgressDisplay(10, 10, 1, console=console) as progress:
        progress.print("x" * 200)
    assert shown(console) == "x" * 200 + "\n"


def test_a_narrow_output_encoding_does_not_stop_the_run() -> None:
    console = screen(terminal=False, encoding="ascii")
    with ProgressDisplay(10, 10, 1, console=console) as progress:
        progress.print("猫.jpg is unreadable")
    assert isinstance(console.file, io.TextIOWrapper)
    console.file.flush()
    assert console.file.buffer.getvalue() == b"?.jpg is unreadable\n"  # type: ignore[attr-defined]


@pytest.mark.parametrize("terminal", [False, True])
def test_quiet_display_prints_nothing(terminal: bool) -> None:
    console, clock = screen(terminal), Clock()
    progress = ProgressDisplay(60, 20, 3, quiet=True, console=console, clock=clock)
    run(progress, clock, seconds=10)
    progress.print("hello")
    assert shown(console) == ""


def test_interrupt_restores_the_terminal() -> None:
    console = screen(terminal=True)
    progress = ProgressDisplay(10, 10, 1, console=console)
    with contextlib.suppress(KeyboardInterrupt), progress:
        raise KeyboardInterrupt
    assert "\x1b[?25h" in shown(console)  # the cursor is visible again
    assert progress.bars is not None
    assert not progress.bars.live.is_started


@pytest.mark.slow
def test_pipe_gets_plain_lines_even_if_colours_are_forced() -> None:
    program = (
        "from vitreous.training.progress import ProgressDisplay\n"
        "with ProgressDisplay(2, 1, 2) as p:\n"
        "    p.step(1, 0.5, 0.1, 10.0, {}); p.epoch(1, {'loss': 0.5})\n"
    )
    environment = {"FORCE_COLOR": "1", "TTY_COMPATIBLE": "1", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert "epoch 1/2  loss 0.500" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
