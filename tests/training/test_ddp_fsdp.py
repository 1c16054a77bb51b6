"""Every optimizer gives the same weights with DDP or FSDP in two processes as in one."""

import os
import socket
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from train_runs import SERVER
from vitreous.common.distributed import World, world
from vitreous.model.build import build_vit
from vitreous.model.config import ViTConfig
from vitreous.training import Optim
from vitreous.training.ddp_fsdp import parallelise
from vitreous.training.optimizer_step import build_optimizers

pytestmark = pytest.mark.slow

WAYS: list[tuple[Any, Any]] = list(product(("adamw", "sgd", "muon"), ("ddp", "fsdp")))


def learn(optimizer: Any, parallel: Any, here: World) -> dict[str, Tensor]:
    """The weights after three steps, the second of which is skipped."""
    torch.manual_seed(0)
    model = build_vit(
        ViTConfig(image_size=(8, 8), patch_size=(4, 4), width=16, depth=2, num_heads=2, mlp_width=16, num_classes=3)
    ).double()  # the gradient of a key's bias is zero but for rounding, which AdamW would make large
    wrapped = parallelise(model, here, parallel) if here.many else model
    assert all(isinstance(block, FSDPModule) == (here.many and parallel == "fsdp") for block in model.blocks)
    optimizers = build_optimizers(model, Optim(optimizer=optimizer, lr=1e-2, layer_decay=0.8), model)
    optimizers.create_state()
    optimizers.set_rate(1.0)
    for step in range(3):
        images = torch.randn(8, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        wrapped(images[here.rank :: here.size]).square().mean().backward()
        optimizers.step(torch.tensor(float(step == 1)))
        optimizers.zero_grad()
    weights = model.state_dict()
    return {name: (w.full_tensor() if hasattr(w, "full_tensor") else w).clone() for name, w in weights.items()}


def learn_all(folder: Path, environment: dict[str, str]) -> None:
    torch.set_num_threads(1)
    os.environ |= environment
    with world("cpu") as here:
        learned = {way: learn(*way, here) for way in WAYS}
    if here.first:
        torch.save(learned, folder / "learned.pt")


def test_every_optimizer_with_ddp_and_fsdp(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    base = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = [base | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
    processes = [SERVER.Process(target=learn_all, args=(tmp_path, rank)) for rank in ranks]
    for process in processes:
        process.start()
    alone = {way: learn(*way, World(0, 1, torch.device("cpu"))) for way in WAYS}
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0]
    together = torch.load(tmp_path / "learned.pt")
    for way, weights in alone.items():
        for name, weight in weights.items():
            # Muon's bfloat16 iteration turns another order of summation into another last bit.
            close = {"rtol": 2e-2, "atol": 2e-3} if way[0] == "muon" else {"rtol": 1e-6, "atol": 1e-7}
            torch.testing.assert_close(
                together[way][name], weight, **close, msg=lambda m, w=way, n=name: f"{w} {n}: {m}"
            )
