import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from vitreous.common.threads import in_threads, spin_briefly, thread_pool

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


def test_torch_uses_one_thread_in_a_pool_and_all_elsewhere() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with thread_pool(2) as pool, ThreadPoolExecutor(1) as other:
            assert {pool.submit(torch.get_num_threads).result() for _ in range(4)} == {1}
            assert torch.get_num_threads() == other.submit(torch.get_num_threads).result() == 3
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_results_keep_their_order_and_errors_are_raised() -> None:
    assert list(in_threads(lambda x: 10 / x, [1, 2, 5], 2)) == [10, 5, 2]
    with pytest.raises(ZeroDivisionError):
        list(in_threads(lambda x: 10 / x, [1, 0, 5], 2))
