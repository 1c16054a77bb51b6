"""Readers and writers for tensor files, safe for untrusted input.

`containers.py` detects the file type from the content: safetensors, npz, or a torch or Paddle pickle.
"""
