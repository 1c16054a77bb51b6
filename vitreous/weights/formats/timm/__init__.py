"""timm's layout and files (`format.py`), its config.json (`config.py`), and formats of its layout (`relatives.py`)."""
