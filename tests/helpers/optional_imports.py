"""Imports optional packages. Tests that need a missing package are skipped."""

import importlib
from types import ModuleType

import pytest

from vitreous.weights.peers import repair_torchvision


def optional(name: str) -> ModuleType:
    repair_torchvision()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        pytest.skip(f"{missing.name} is not installed: `make setup` installs it")


def import_timm() -> ModuleType:
    return optional("timm")


def import_torchvision() -> ModuleType:
    optional("torchvision.models")
    return optional("torchvision")


def import_vit_pytorch() -> ModuleType:
    return optional("vit_pytorch")


def import_accelerate() -> ModuleType:
    return optional("accelerate")


def import_transformers() -> ModuleType:
    transformers = optional("transformers")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers
