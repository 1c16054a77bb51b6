"""The paper's claims, measured again at a small scale with several seeds.

A study is a file with the runs of one claim (`positions.py`, `pooling.py`, ...). `study.py` defines studies and their
scales, `flops.py` matches the compute of different models, `run_studies.py` runs studies in parallel processes,
`records.py` stores results and finds stale ones, and `publish.py` (`make results`) writes the plots and tables of
docs/en/results.md.

Command:  python -m recipes.studies [STUDY ...] --scale h200 --seconds 560
"""

from recipes.studies.attention_distance import ATTENTION_DISTANCE
from recipes.studies.hybrids import HYBRIDS
from recipes.studies.masked import MASKED
from recipes.studies.pooling import POOLING
from recipes.studies.positions import POSITIONS
from recipes.studies.resolution import RESOLUTION
from recipes.studies.study import Study
from recipes.studies.training_set_size import TRAINING_SET_SIZE

STUDIES: dict[str, Study] = {
    study.name: study
    for study in (POSITIONS, POOLING, ATTENTION_DISTANCE, HYBRIDS, RESOLUTION, MASKED, TRAINING_SET_SIZE)
}
