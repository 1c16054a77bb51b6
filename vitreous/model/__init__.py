"""The Vision Transformer as parts: each small module is one idea; `vit.py` composes them."""
