"""Who decodes pictures: threads ahead of the model, or whoever asks."""

from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def decoders(workers: int) -> Executor:
    """So many threads; with 0, what is submitted is done at once, by the caller itself.

    >>> with decoders(0) as pool:
    ...     pool.submit(pow, 2, 5).result()
    32
    """
    return ThreadPoolExecutor(workers, thread_name_prefix="vitreous-decode") if workers else _AtOnce()


class _AtOnce(Executor):
    """For callers that come often, with little: a thread for each time costs more than it helps."""

    def submit(self, work: Callable[P, T], /, *arguments: P.args, **named: P.kwargs) -> Future[T]:
        done: Future[T] = Future()
        try:
            done.set_result(work(*arguments, **named))
        except Exception as error:
            done.set_exception(error)
        return done
