"""Speed of Vitreous beside other libraries, measured alternately in one run (`vitreous bench`).

comparison.py runs the measurements; systems.py builds the models of all systems with the same weights, and states
in which settings they run; timing.py times them within a limit; comparison_output.py shows and draws the results.
"""

from vitreous.benchmarking.comparison import compare_systems

__all__ = ["compare_systems"]
