"""Data sets from a local hub server, downloaded with huggingface_hub."""

import io
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import constants

from hostile_hub import HostileHub, response, start, use
from vitreous.data.open import open_data
from vitreous.data.sources.base import Source
from vitreous.data.sources.hub import CONVERTED
from vitreous.data.sources.tables import choose_files

pa = pytest.importorskip("pyarrow")
import pyarrow.parquet as pq  # noqa: E402

COMMITS = {"main": "a" * 40, CONVERTED: "b" * 40, "v1": "c" * 40}


def parquet(start: int, count: int) -> bytes:
    numbers = range(start, start + count)
    features = {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}
    table = pa.table(
        {
            "image": [{"bytes": f"image {i}".encode(), "path": f"{i}.jpg"} for i in numbers],
            "label": [i % 2 for i in numbers],
        }
    ).replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    out = io.BytesIO()
    pq.write_table(table, out)
    return out.getvalue()


def contents(source: Source) -> dict[bytes, str]:
    return {bytes(source.image(i)): source.classes[source.labels[i]] for i in range(len(source))}


class Hub:
    """Files of each data set by name and revision, and the requested pages."""

    def __init__(self) -> None:
        self.sets: dict[tuple[str, str], dict[str, bytes]] = {}
        self.requests: list[str] = []


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = self.path.split("?")[0].replace("%2F", "/")
            site.requests.append(path)
            for (name, revision), files in site.sets.items():
                names = (revision, COMMITS[revision])
                if path in {f"/api/datasets/{name}/tree/{word}" for word in names}:
                    entries = [{"type": "file", "path": p, "size": len(b), "oid": "0" * 40} for p, b in files.items()]
                    return self.respond(json.dumps(entries).encode())
                about = {f"/api/datasets/{name}/revision/{word}" for word in names}
                if path in about | ({f"/api/datasets/{name}"} if revision == "main" else set()):
                    entries = [{"rfilename": p} for p in files]
                    return self.respond(json.dumps({"id": name, "sha": names[1], "siblings": entries}).encode())
                for file, body in files.items():
                    if path in {f"/datasets/{name}/resolve/{word}/{file}" for word in names}:
                        return self.respond(body, {"X-Repo-Commit": COMMITS[revision], "ETag": f'"{hash(body)}"'})
            known = any(name in path for name, _ in site.sets)
            code = "RevisionNotFound" if known else "RepoNotFound"
            self.send_response(404)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return None

        def respond(self, body: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(200)
            for key, value in {"Content-Type": "application/json", **(headers or {})}.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    site = Hub()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    use_hub(monkeypatch, f"http://127.0.0.1:{server.server_port}", tmp_path / "hf")
    yield site
    server.shutdown()
    server.server_close()
    thread.join()


def use_hub(monkeypatch: pytest.MonkeyPatch, address: str, cache: Path, offline: bool = False) -> None:
    """Apply HF_ENDPOINT, HF_HUB_CACHE and HF_HUB_OFFLINE as in a new process."""
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)


def test_repository_is_downloaded_and_then_cached(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.sets["ann/pets", "main"] = {
        "README.md": b"pets",
        "data/train-00000-of-00002.parquet": parquet(0, 6),
        "data/train-00001-of-00002.parquet": parquet(6, 6),
        "data/test-00000-of-00001.parquet": parquet(12, 4),
    }
    data = open_data("hf:ann/pets")
    assert data.classes == ("cat", "dog")
    assert contents(data.train) == {f"image {i}".encode(): ["cat", "dog"][i % 2] for i in range(12)}
    assert len(data.val) == 4
    assert data.train.name(7) == "train-00001-of-00002.parquet[1]"
    assert not any("README" in page for page in hub.requests)

    requests = len(hub.requests)
    use_hub(monkeypatch, "http://127.0.0.1:9", tmp_path / "hf", offline=True)
    assert contents(open_data("hf:ann/pets").train) == contents(data.train)
    assert len(hub.requests) == requests
    with pytest.raises(OSError, match=r"hf:ann/other is not in the cache.*HF_HUB_OFFLINE is set"):
        open_data("hf:ann/other")


def test_parquet_conversion_of_the_hub_is_used(hub: Hub) -> None:
    hub.sets["ann/pets", "main"] = {"train.zip": b"", "README.md": b""}
    hub.sets["ann/pets", CONVERTED] = {
        "default/train/0000.parquet": parquet(0, 8),
        "default/validation/0000.parquet": parquet(8, 2),
    }
    data = open_data("hf:ann/pets")
    assert (len(data.train), len(data.val)) == (8, 2)


def test_revision_and_configuration_are_selected(hub: Hub) -> None:
    hub.sets["ann/pets", "main"] = {"x/train.parquet": parquet(0, 4), "y/train.parquet": parquet(4, 6)}
    hub.sets["ann/pets", "v1"] = {"train.parquet": parquet(0, 20)}
    assert len(open_data("hf:ann/pets:y").train) == 4
    assert len(open_data("hf:ann/pets@v1").train) == 16
    with pytest.raises(ValueError, match=r"has configurations 'x', 'y'; choose one, e.g. hf:ann/pets:x"):
        open_data("hf:ann/pets")
    with pytest.raises(ValueError, match="has no configuration 'z'; choose from 'x', 'y'"):
        open_data("hf:ann/pets:z")


def test_invalid_requests_are_rejected(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.sets["ann/text", "main"] = {"README.md": b""}
    with pytest.raises(ValueError, match="hf:ann/text: the repository has no Parquet files"):
        open_data("hf:ann/text")
    with pytest.raises(ValueError, match="hf:bob/pets does not exist on the Hub or is private"):
        open_data("hf:bob/pets")
    with pytest.raises(ValueError, match="expected hf:owner/name"):
        open_data("hf:a/b/c")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    use_hub(monkeypatch, address, tmp_path / "hf")
    with pytest.raises(
        OSError, match=rf"hf:ann/text is not in the cache, and {address}/datasets/ann/text is unreachable"
    ):
        open_data("hf:ann/text")


def test_hostile_hub_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = HostileHub(files={"train.parquet": parquet(0, 8)})
    stop = start(site)
    use(monkeypatch, site, tmp_path / "hf")
    monkeypatch.setattr("vitreous.common.hub_client.MAX_METADATA_BYTES", 1 << 16)
    etag = {"ETag": '"../../../victim"', "X-Repo-Commit": "a" * 40, "Content-Length": str(len(parquet(0, 8)))}
    for kind, hostile, error in (
        ("listing", response(b" " * (1 << 17), {}), r"131,072 bytes; the maximum is 65,536"),
        ("listing", response(site.listing(siblings=[{"rfilename": "../x.parquet"}]), {}), "not a valid file name"),
        ("head", response(b"", etag, body=False), r"ETag: '\"\.\./"),
        ("file", response(b"x" * 100_000, {}), r"100,000 bytes; the maximum is"),
    ):
        monkeypatch.setattr(site, "responses", {kind: lambda _, body=hostile: [body]})
        with pytest.raises(OSError, match=error):
            open_data("hf:eve/model")
    assert not [path for path in tmp_path.rglob("*") if path.suffix == ".parquet" or path.name == "victim"]
    stop()


def test_file_with_a_wrong_checksum_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = HostileHub(files={"train.parquet": parquet(0, 8)})
    stop = start(site)
    use(monkeypatch, site, tmp_path / "hf")
    wrong = {"rfilename": "train.parquet", "size": len(parquet(0, 8)), "blobId": "0" * 40}
    site.responses["listing"] = lambda _: [response(site.listing(siblings=[wrong]), {})]
    for _ in range(2):  # it is downloaded again
        with pytest.raises(OSError, match=r"checksum mismatch for train\.parquet: expected 0{40}"):
            open_data("hf:eve/model")
        assert not list((tmp_path / "hf").rglob("*.parquet"))
        assert not list((tmp_path / "hf").glob("*/blobs/*"))
    site.responses.clear()
    assert len(open_data("hf:eve/model", val_fraction=0.5).train) == 4
    stop()


def test_files_are_selected_by_configuration() -> None:
    files = ["plain_text/train-00000-of-00001.parquet", "plain_text/test-00000-of-00001.parquet"]
    assert choose_files("x", files, None) == {"train": files[:1], "test": files[1:]}
    assert choose_files("x", ["data/all.parquet"], None) == {"all": ["data/all.parquet"]}
    extra = ["default/train/0000.parquet", "default/unsupervised/0000.parquet"]
    assert choose_files("x", ["a/train.parquet", "default/train/0.parquet"], None) == {
        "train": ["default/train/0.parquet"]
    }
    assert choose_files("x", extra, "default")["train"] == extra[:1]
