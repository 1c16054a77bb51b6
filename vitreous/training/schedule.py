"""The learning rate at a step, as a share of its peak: a pure function, so that a resumed run needs no state for it."""

import math

from vitreous.training.config import Optim


def share_of_peak(step: int, total: int, optim: Optim) -> float:
    """Warm up linearly, then follow the schedule; `step` counts from 0.

    >>> [round(share_of_peak(step, 10, Optim(warmup=0.2)), 2) for step in (0, 1, 2, 6, 9)]
    [0.5, 1.0, 1.0, 0.5, 0.04]
    """
    rising, final = round(optim.warmup * total), optim.final_lr
    if step < rising:
        return (step + 1) / rising
    left = total - rising
    done = (step - rising) / max(left, 1)
    match optim.schedule:
        case "constant":
            return 1.0
        case "linear":
            return final + (1 - final) * (1 - done)
        case "cosine":
            return final + (1 - final) * (1 + math.cos(math.pi * done)) / 2
        case "rsqrt":
            # 1 / sqrt(step), continuous at the end of warm-up (Scaling Vision Transformers); then linearly to zero.
            falling = round(optim.cooldown * total)
            start = max(rising, 1)
            ending = (total - step) / falling if falling and step >= total - falling else 1.0
            return math.sqrt(start / (step + start - rising)) * ending
