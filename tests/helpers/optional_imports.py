"""Imports optional packages. Tests that need a missing package are skipped."""

from types import ModuleType

import pytest

from benchmarks import peers


def import_timm() -> ModuleType:
    try:
        return peers.import_timm()
    except ModuleNotFoundError as missing:
        pytest.skip(f"{missing.name} is not installed: `make setup` installs it")


def import_torchvision() -> ModuleType:
    import_timm()  # makes torchvision importable with any version of torch
    import torchvision.models

    return torchvision


def import_vit_pytorch() -> ModuleType:
    import_timm()  # as above: vit-pytorch imports torchvision
    try:
        import vit_pytorch
    except ModuleNotFoundError as missing:
        pytest.skip(f"{missing.name} is not installed: `make setup` installs it")
    return vit_pytorch


def import_transformers() -> ModuleType:
    import_timm()  # makes torchvision, which transformers imports, importable with any version of torch
    try:
        import transformers
    except ModuleNotFoundError as missing:
        pytest.skip(f"{missing.name} is not installed: `make setup` installs it")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers


def import_accelerate() -> ModuleType:
    try:
        import accelerate
    except ModuleNotFoundError as missing:
        pytest.skip(f"{missing.name} is not installed: `make setup` installs it")
    return accelerate
