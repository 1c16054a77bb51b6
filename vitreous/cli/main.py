"""Entry point of the `vitreous` command. Bad arguments exit with 2, bad data with 1 and one clear line.

Each verb has a file of its own, which imports torch only when it runs, so that `--help` answers at once.
"""

import sys
from collections.abc import Callable

import tyro

import vitreous
from vitreous.cli.convert import convert
from vitreous.cli.data import data
from vitreous.cli.demo import demo
from vitreous.cli.errors import print_own_warnings, refuse
from vitreous.cli.eval import evaluate
from vitreous.cli.explain import explain
from vitreous.cli.flags import PLAIN, lists_together, numbers_last
from vitreous.cli.info import info
from vitreous.cli.predict import embed, predict
from vitreous.cli.serve import serve
from vitreous.cli.train import train
from vitreous.common.checks import suggestion
from vitreous.common.threads import spin_briefly

VERBS: dict[str, Callable[..., None]] = {
    "train": train,
    "eval": evaluate,
    "predict": predict,
    "embed": embed,
    "explain": explain,
    "convert": convert,
    "serve": serve,
    "info": info,
    "data": data,
    "demo": demo,
}
app = tyro.extras.SubcommandApp()
for name, verb in VERBS.items():
    app.command(name=name)(verb)


def main() -> None:
    """Entry point of the `vitreous` command."""
    spin_briefly()
    print_own_warnings()
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    if word == "--version":
        print(f"vitreous {vitreous.__version__}")
        return
    if word and not word.startswith("-") and word not in VERBS:
        print(f"vitreous: there is no verb {word!r}{suggestion(word, VERBS)}: use {', '.join(VERBS)}", file=sys.stderr)
        sys.exit(2)
    try:
        try:
            words = numbers_last(lists_together(sys.argv[1:]))
            app.cli(prog="vitreous", description="A Vision Transformer you can see through.", config=PLAIN, args=words)
        finally:
            sys.stdout.flush()  # here, where it can be seen that nobody reads on
    except (ValueError, OSError) as error:
        refuse(error)
