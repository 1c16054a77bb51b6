"""Entry point of `make torture`."""

import sys

from torture import checkpoint_cases, data_cases, serving_cases, training_cases
from torture.runner import main

main(
    [*training_cases.CASES, *checkpoint_cases.CASES, *data_cases.CASES, *serving_cases.CASES],
    sys.argv[1:],
)
