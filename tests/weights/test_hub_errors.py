"""Hub errors are one line, and incomplete files are not kept."""

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from hub_server import TOKEN, Hub
from hub_subprocess import NOT_FOUND, Client, error_of, files_of


def test_hub_errors_are_one_line(hub: Hub, client: Client, pets: Path) -> None:
    for name in ("me/known", "me/gated", "me/broken"):
        hub.add(name, files_of(pets))
    hub.repositories["me/gated"].gated = hub.repositories["me/broken"].broken = True
    hub.add("me/empty", {"train.py": b"x"})

    def error_for(source: str, token: str | None = None) -> str:
        return error_of(client, "load", source, token=token)

    page = hub.url
    nothing = error_for("hf-hub:no/such")
    assert nothing.startswith(f"BadCheckpoint: hf-hub:no/such: {page}/no/such {NOT_FOUND}")
    assert "hf auth login" in nothing
    assert error_for("hf-hub:no/such", TOKEN) == nothing
    revision = error_for("hf-hub:me/known@v9")
    assert revision.startswith(f"BadCheckpoint: hf-hub:me/known@v9: {page}/me/known has no revision 'v9'")
    assert "rejected the token" in error_for("hf-hub:me/known", "hf_wrong")
    assert f"accept the terms on {page}/me/gated, then log in" in error_for("hf-hub:me/gated", TOKEN)
    broken = error_for("hf-hub:me/broken")
    assert broken.startswith("HubUnavailable: hf-hub:me/broken is not in the cache")
    assert f"{page}/me/broken cannot be reached (HTTP status 503: Service unavailable)" in broken
    assert error_for("hf-hub:me/empty").startswith("BadCheckpoint: hf-hub:me/empty has no weight files")


def test_unreachable_hub_falls_back_to_the_cache(hub: Hub, client: Client, pets: Path) -> None:
    hub.add("me/reached", files_of(pets))
    reached = client.call("load", "hf-hub:me/reached")
    with hub.unreachable():
        assert client.call("load", "hf-hub:me/reached") == reached
        line = error_of(client, "load", "hf-hub:me/never")
        assert line.startswith("HubUnavailable: hf-hub:me/never is not in the cache")
        assert f", and {hub.url}/me/never cannot be reached (" in line
        assert line.endswith("try again later")
    hub.repositories["me/reached"].broken = True
    assert client.call("load", "hf-hub:me/reached") == reached


# ---- Downloaded files ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_broken_connection_is_resumed(hub: Hub, client: Client, pets: Path) -> None:
    hub.add("me/cut", files_of(pets))
    hub.faults["model.safetensors"] = "cut"
    client.call("load", "hf-hub:me/cut")
    assert len([request for request in hub.requests if request.server == "store"]) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "fault", "message"),
    [
        ("model.safetensors", "cut, then 500", r"could not be downloaded from .* status 500: Internal error\)"),
        ("model.safetensors", "500", r"could not be downloaded from .* status 500: Internal error.*try again"),
        ("model.safetensors", "short", r"could not be downloaded from .*should be of size \d+ but has size \d+"),
        (
            "model.safetensors",
            "flipped",
            r"could not be downloaded from .*checksum mismatch for model.safetensors: expected \w{64}, got",
        ),
        (
            "config.json",
            "flipped",
            r"could not be downloaded from .*checksum mismatch for config.json: expected \w{40}, got",
        ),
        ("model.safetensors", "huge", r".*download of 1,000,000.0 GB"),
        ("config.json", "huge", r"config.json is 1,000,000,000,000,000 bytes"),
    ],
)
def test_incomplete_files_are_not_kept(
    hub: Hub, client: Client, pets: Path, file: str, fault: str, message: str
) -> None:
    name = f"me/bad-{fault.split(',')[0]}-{file}"
    hub.add(name, files_of(pets))
    hub.faults[file] = fault
    with pytest.raises(RuntimeError, match=f"^(OSError|BadCheckpoint): hf-hub:{name}:? {message}"):
        client.call("load", f"hf-hub:{name}")
    hub.faults.clear()
    assert client.call("load", f"hf-hub:{name}")["provenance"]["repository"] == name


def test_nothing_in_a_repository_is_executed(hub: Hub, client: Client, pets: Path, tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "sprung"),)

    card = f"---\nlicense: !!python/object/apply:os.mkdir ['{tmp_path}/sprung']\n---\n".encode()
    hub.add(
        "evil/model",
        {
            "pytorch_model.bin": pickle.dumps({"a": Trap()}),
            "config.json": b'{"auto_map": {"AutoModel": "trap.Trap"}}',
            "trap.py": f"import os\nos.mkdir({str(tmp_path / 'sprung')!r})".encode(),
            "../../escaped.json": b"{}",
            "README.md": card,
        },
    )
    line = error_of(client, "load", "hf-hub:evil/model")
    assert "pytorch_model.bin contains posix.mkdir, which is not a tensor (no code in it was executed" in line
    assert hub.requested_files() == ["README.md", "config.json", "pytorch_model.bin"]
    hub.add("evil/card", files_of(pets) | {"README.md": card})
    assert client.call("load", "hf-hub:evil/card")["provenance"]["license"] == "mit"  # as in config.json
    assert not (tmp_path / "sprung").exists()
