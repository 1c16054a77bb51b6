"""Refuses models that this machine cannot serve, before it tries to."""

from vitreous.inference.memory_check import check_bytes, large_cost, takes
from vitreous.inference.prediction_files import clean
from vitreous.model.segmenter import Segmenter
from vitreous.serving.models import Served

# Operations a second that no device of the kind reaches: what needs more than the timeout at this speed never ends.
FASTEST = {"cpu": 10**13}
FASTEST_ACCELERATOR = 10**16


def check_capacity(served: Served, max_batch: int, timeout: float) -> None:
    """ValueError if a batch needs more memory than there is, or one image more time than a request has."""
    model, device = served.model, next(served.model.parameters()).device
    spent = large_cost(model.config)
    if spent is None:
        return
    batch = 1 if isinstance(model, Segmenter) else max_batch  # segmenters compute one image at a time
    subject, advice = takes(model.config, clean(served.name)), "use a smaller --image-size or --max-batch"
    check_bytes(batch * spent.inference_bytes, device, f"{subject} a batch of {batch}", advice)
    if spent.flops > timeout * FASTEST.get(device.type, FASTEST_ACCELERATOR):
        raise ValueError(
            f"{subject} each needs {spent.flops:.1e} operations, which take longer than the timeout of {timeout:g} s: "
            "use a smaller --image-size or a longer --timeout"
        )
