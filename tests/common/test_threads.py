import os
import subprocess
import sys

import pytest

from vitreous.common.threads import spin_briefly

PROGRAM = """
import os, sys
from vitreous.cli.main import main
assert "torch" not in sys.modules  # torch reads the variable only on import
sys.argv = ["vitreous", "info", "ViT-Ti/16"]
main()
print(os.environ["GOMP_SPINCOUNT"])
"""


@pytest.mark.slow
def test_command_sets_the_variable_before_importing_torch() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.splitlines()[-1] == "1000"


def test_user_setting_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    spin_briefly()
    assert os.environ["GOMP_SPINCOUNT"] == "7"
