"""Sessions of other runtimes in a process with threads and signal handlers."""

import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

onnx = pytest.importorskip("onnx")
if find_spec("openvino") is None:
    pytest.skip("openvino is not installed: `make setup` installs it", allow_module_level=True)

HANDLED = """
import signal, sys, threading
from pathlib import Path
from vitreous.runtimes.sessions import openvino_session

sessions = [openvino_session(Path(sys.argv[1]))]
thread = threading.Thread(target=sessions.clear)
thread.start()
thread.join()
signal.signal(signal.SIGTERM, lambda *_: print("handled"))
signal.raise_signal(signal.SIGTERM)
"""
TELEMETRY = """
from vitreous.runtimes.sessions import package

sender = package("openvino", "openvino").tools.ovc.telemetry
print(type(sender).__module__)
"""


@pytest.mark.slow
def test_openvino_sends_no_telemetry() -> None:
    done = subprocess.run([sys.executable, "-c", TELEMETRY], capture_output=True, text=True)
    assert done.stdout == "openvino.tools.ovc.telemetry_stub\n", done.stderr


@pytest.mark.slow
def test_signals_are_handled_after_another_thread_deleted_a_session(tmp_path: Path) -> None:
    file, (x, y) = tmp_path / "relu.onnx", (onnx.helper.make_tensor_value_info(name, 1, [1, 3]) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "relu", [x], [y])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)]), file)
    run = subprocess.run([sys.executable, "-c", HANDLED, file], capture_output=True, text=True, timeout=300)
    assert (run.returncode, run.stdout.split()) == (0, ["handled"]), (signal.strsignal(-run.returncode), run.stderr)
