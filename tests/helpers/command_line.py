"""Runs `vitreous` in the test process, which is faster than starting a process that imports torch."""

import subprocess
import sys

import pytest

from vitreous.cli.main import main


class CommandLine:
    def __init__(self, patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]):
        self.patch, self.capture = patch, capture

    def __call__(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        """Run a command and return its exit status and output, as `subprocess.run` does."""
        self.capture.readouterr()
        words, status = ["vitreous", *map(str, arguments)], 0
        self.patch.setattr(sys, "argv", words)
        try:
            main()
        except SystemExit as end:
            status = int(end.code or 0)
        output = self.capture.readouterr()
        return subprocess.CompletedProcess(words, status, output.out, output.err)
