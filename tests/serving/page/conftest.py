"""A server with a small model of every kind, shared by the tests of a file."""

from collections.abc import Iterator
from typing import Any

import pytest

from inspect_requests import all_kinds
from live_server import Live, in_thread
from vitreous.serving.models import ServedModel, serve_model


@pytest.fixture(scope="session")
def models() -> dict[str, Any]:
    return all_kinds()


@pytest.fixture(scope="module")
def live(models: dict[str, Any]) -> Iterator[Live]:
    served: list[ServedModel] = [serve_model(model, id, id, "cpu") for id, model in models.items()]  # type: ignore[arg-type]
    with in_thread(served) as live:
        yield live
