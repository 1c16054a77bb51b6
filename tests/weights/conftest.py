"""A local hub and client processes, shared by all tests because they start slowly."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from hub_server import Hub
from hub_subprocess import Client
from vitreous.model.build import build
from vitreous.model.config import ViTConfig
from vitreous.weights.load import save


@pytest.fixture(scope="session")
def shared_hub() -> Hub:
    return Hub()


@pytest.fixture
def hub(shared_hub: Hub) -> Iterator[Hub]:
    """Return the shared hub, with recorded requests and faults cleared."""
    shared_hub.requests.clear()
    yield shared_hub
    shared_hub.faults.clear()


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Cache folder of huggingface_hub."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="session")
def clients(shared_hub: Hub, home: Path) -> Iterator[tuple[Client, Client]]:
    """Start an online and an offline client that share a cache."""
    pair = Client(shared_hub.url, home), Client(shared_hub.url, home, HF_HUB_OFFLINE="1")
    yield pair
    for client in pair:
        client.close()


@pytest.fixture
def client(clients: tuple[Client, Client]) -> Client:
    return clients[0]


@pytest.fixture
def offline(clients: tuple[Client, Client]) -> Client:
    return clients[1]


@pytest.fixture(scope="session")
def pets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A native checkpoint that other formats can also represent."""
    torch.manual_seed(0)
    model = build(
        ViTConfig(
            image_size=(32, 32),
            patch_size=(8, 8),
            width=64,
            depth=2,
            num_heads=1,
            mlp_width=96,
            num_classes=3,
            labels=("cat", "dog", "owl"),
        )
    )
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.1)
    folder = tmp_path_factory.mktemp("saved") / "pets"
    save(model, folder, provenance={"license": "mit", "metrics": {"top1": 0.75}})
    return folder
