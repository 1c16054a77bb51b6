"""HTML elements, plots, colours and PNG files for the reports of training, evaluation and explanation.

Functions take plain data and do not depend on a task or a model. `html.py` writes the report of a training run.
"""
