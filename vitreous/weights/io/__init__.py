"""Readers and writers of tensor files that are safe for untrusted input.

`containers.py` recognises the kind of a file by its content: safetensors, npz, or a pickle of torch or Paddle.
"""
