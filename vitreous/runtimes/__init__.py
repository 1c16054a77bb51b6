"""Other runtimes: writes modules as ONNX files, and runs files in onnxruntime and OpenVINO.

`trace` traces modules with torch.export, `onnx_graph` converts and saves them, and `sessions` runs the files.
"""
