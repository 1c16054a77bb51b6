"""timm's layout and files (`format.py`) and its config.json (`config.py`)."""
