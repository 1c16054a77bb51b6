"""Sessions of other runtimes: outputs, threads and signal handlers."""

import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from vitreous.runtimes.sessions import openvino_session

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


@pytest.fixture
def relu(tmp_path: Path) -> Path:
    """A file with one operator."""
    file, (x, y) = tmp_path / "relu.onnx", (onnx.helper.make_tensor_value_info(name, 1, [1, 3]) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "relu", [x], [y])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)]), file)
    return file


def test_outputs_are_those_of_the_values_of_each_call(relu: Path) -> None:
    session, inputs = openvino_session(relu), np.array([[1, -2, 3]], dtype=np.float32)
    first = session({"x": inputs})["y"]
    inputs *= -1
    second, strided = session({"x": inputs})["y"], session({"x": np.repeat(inputs, 2, axis=1)[:, ::2]})["y"]
    assert (first.tolist(), second.tolist(), strided.tolist()) == ([[1, 0, 3]], [[0, 2, 0]], [[0, 2, 0]])


@pytest.mark.slow
def test_signals_are_handled_after_another_thread_deleted_a_session(relu: Path) -> None:
    run = subprocess.run([sys.executable, "-c", HANDLED, relu], capture_output=True, text=True, timeout=300)
    assert (run.returncode, run.stdout.split()) == (0, ["handled"]), (signal.strsignal(-run.returncode), run.stderr)
