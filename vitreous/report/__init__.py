"""Building blocks for the reports of training, evaluation and explanation.

html.py contains HTML elements, number formats, and the report of a training run; plots.py plots and PNG files;
colours.py colour maps. Functions take plain data and do not depend on a task or a model. Import the modules and call
their functions as `html.table` or `plots.grid`. The names in `__all__` are re-exported here.
"""

from vitreous.report.html import Html, RunReport, Section, TaskReport, write_report
from vitreous.report.plots import can_draw, write_png

__all__ = ["Html", "RunReport", "Section", "TaskReport", "can_draw", "write_png", "write_report"]
