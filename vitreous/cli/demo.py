"""The verb `vitreous demo`."""


def demo() -> None:
    """Train a small model on handwritten digits, evaluate it and report: about a minute on a laptop.

    Example: vitreous demo
    """
    from vitreous.cli.demo_run import run

    run()
