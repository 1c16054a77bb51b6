"""Elements of the reports of training, evaluation and explanation.

html.py: HTML elements, number formats, and the report of a training run. plots.py: colours, plots and PNG files.
Functions take plain data and do not depend on a task or a model. Callers import the two modules and use their functions
by module, such as `html.table` and `plots.grid`; the types of a report and the function that writes it are here.
"""

from vitreous.report.html import Html, RunReport, Section, TaskReport, write_report
from vitreous.report.plots import can_draw, write_png

__all__ = ["Html", "RunReport", "Section", "TaskReport", "can_draw", "write_png", "write_report"]
