"""Reports: HTML elements, plots, colours and PNG files, shared by the reports of training, evaluation and explanation.

Functions here take plain data; nothing imports a task or a model. `html.py` writes the page of a training run.
"""
