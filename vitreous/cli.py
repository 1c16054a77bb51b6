"""The command line: one verb per job. Bad arguments exit with 2, bad data with 1 and one clear line.

torch is imported inside the verbs, so that `--help` answers at once.
"""

import sys
from typing import Annotated

import tyro
from tyro.conf import Positional, arg

from vitreous.model.checks import suggestion

app = tyro.extras.SubcommandApp()
VERBS = ("info", "demo")


def main() -> None:
    """Entry point of the `vitreous` command."""
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    if word and not word.startswith("-") and word not in VERBS:
        print(f"vitreous: there is no verb {word!r}{suggestion(word, VERBS)}: use {', '.join(VERBS)}", file=sys.stderr)
        sys.exit(2)
    try:
        app.cli(
            prog="vitreous",
            description="A Vision Transformer you can see through.",
            config=(tyro.conf.FlagCreatePairsOff,),
        )
    except (ValueError, OSError) as error:
        print(f"vitreous: {error}", file=sys.stderr)
        sys.exit(1)


@app.command
def info(
    name: Annotated[Positional[str], arg(metavar="NAME")] = "",
    *,
    num_classes: Annotated[int, arg(metavar="N")] = -1,
    image_size: Annotated[tuple[int, ...], arg(metavar="PIXELS | HEIGHT WIDTH")] = (),
    json: bool = False,
) -> None:
    """What a model is made of and what it costs: parameters, operations, tokens, memory.

    Example: vitreous info ViT-B/16 --image-size 384

    Args:
        name: A preset, named as its paper names it. Left out: a list of all presets.
        num_classes: Another number of classes than the preset's; 0 for none.
        image_size: Another image size than the preset's.
        json: Print JSON instead of a table.
    """
    from vitreous import info as report

    if not name:
        report.print_presets(as_json=json)
        return
    report.print_model(name, None if num_classes < 0 else num_classes, image_size or None, as_json=json)


@app.command
def demo() -> None:
    """One image through one model, equation by equation, with the real shapes.

    Example: vitreous demo
    """
    from vitreous.demo import run

    run()
