"""Swin Transformers V1 and V2 of Microsoft, timm, transformers and torchvision.

The libraries name the same tensors differently (`layout.py` has the common table) and differ in the windows of feature
maps that windows do not fill (`WindowRule`).
"""
