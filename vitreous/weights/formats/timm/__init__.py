"""timm's layout and files (`format.py`), its config.json (`config.py`), and formats with its layout (`relatives.py`)."""
