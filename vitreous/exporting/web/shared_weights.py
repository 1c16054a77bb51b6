"""Weight files that several ONNX graphs share. Each tensor is stored once, in float32 or float16."""

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

MAX_FILE_BYTES = 16 * 2**20  # many static hosts limit the size of a file, some to 25 MB
MIN_BYTES = 1024  # smaller tensors stay in the graph


class WeightFiles:
    """Writes tensors to files of at most MAX_FILE_BYTES, unless a single tensor is larger."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.sizes: list[int] = []
        self._places: dict[bytes, dict[str, str]] = {}

    @property
    def names(self) -> list[str]:
        return [f"weights-{number}.bin" for number in range(len(self.sizes))]

    def place(self, data: bytes) -> dict[str, str]:
        """Write a tensor unless it has been written before. Return its file, offset and length."""
        key = sha256(data).digest()
        if key not in self._places:
            if not self.sizes or self.sizes[-1] + len(data) > MAX_FILE_BYTES:
                self.sizes.append(0)
            with open(self.folder / self.names[-1], "ab") as file:
                file.write(data)
            place = {"location": self.names[-1], "offset": str(self.sizes[-1]), "length": str(len(data))}
            self._places[key] = place
            self.sizes[-1] += len(data)
        return self._places[key]


def write_graphs(graphs: Mapping[str, Any], folder: Path, half: bool) -> list[str]:
    """Write ONNX models that share their weights, and return the names of the weight files.

    Args:
        graphs: ONNX models by file name. They are modified.
        half: Store weights in float16. The graphs convert them to float32 when they are loaded.
    """
    import onnx

    files = WeightFiles(folder)
    for name, model in graphs.items():
        strip_descriptions(model)
        casts = [cast for tensor in model.graph.initializer if (cast := _outsource(tensor, files, half)) is not None]
        for number, cast in enumerate(casts):
            model.graph.node.insert(number, cast)
        onnx.save(model, folder / name)
    return files.names


def _outsource(tensor: Any, files: WeightFiles, half: bool) -> Any:
    """Move the data of a tensor to a file. Return the node that converts it back, if it is stored in float16."""
    from onnx import TensorProto, helper, numpy_helper

    if len(tensor.raw_data) < MIN_BYTES:
        return None
    cast = None
    if half and tensor.data_type == TensorProto.FLOAT:
        name, stored = tensor.name, f"{tensor.name}.half"
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype("float16"), stored))
        cast = helper.make_node("Cast", [stored], [name], to=TensorProto.FLOAT)
    place = files.place(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in place.items():
        tensor.external_data.add(key=key, value=value)
    return cast


def strip_descriptions(model: Any) -> None:
    """Remove names and descriptions that no runtime needs; they can be larger than the graph."""
    graph = model.graph
    for node in graph.node:
        node.ClearField("name")
    for part in (model, graph, *graph.node, *graph.initializer, *graph.input, *graph.output):
        part.ClearField("doc_string")
        del part.metadata_props[:]
    del graph.value_info[:]
