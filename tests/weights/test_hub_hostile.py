"""A hostile hub cannot change files outside the cache, send unlimited data or get the token for other hosts."""

import contextlib
import gzip
import hashlib
import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import httpx2
import pytest
from huggingface_hub import constants

from hostile_hub import COMMIT, REPOSITORY, TOKEN, HostileHub, git_hash, response, start, use
from vitreous.common import hub_client
from vitreous.weights.hub import download

HUB = f"hf-hub:{REPOSITORY}"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostileHub]:
    site = HostileHub(files={"config.json": b"{}", "model.safetensors": b"weights" * 100})
    stop = start(site)
    use(monkeypatch, site, tmp_path / "home" / "cache")
    (tmp_path / "home").mkdir()
    yield site
    stop()


@pytest.fixture
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the timeouts to seconds."""
    for name, value in {
        "vitreous.common.network.STALL_SECONDS": 2.0,
        "vitreous.common.network.WINDOW_SECONDS": 0.4,
        "vitreous.common.hub_client.METADATA_SECONDS": 0.4,
    }.items():
        monkeypatch.setattr(name, value)


def head(**headers: str) -> Callable[[str], Iterable[bytes]]:
    """Return a HEAD response with the given headers changed."""
    usual = {"ETag": '"e"', "X-Repo-Commit": COMMIT}
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda _: [response(b"", usual | {"Content-Length": "2"} | names, body=False)]


def everything(folder: Path) -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def test_valid_response_is_downloaded(hub: HostileHub) -> None:
    folder = download(HUB).folder
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == hub.files


# ---- Paths -----------------------------------------------------------------------------------------------------------

TRAVERSALS = [
    '"../../../../victim"',
    '"/tmp/victim"',
    '"a/b"',
    '".."',
    ".",
    '"a\\b"',
    "W/..",
    "WW..",
    '"' + "x" * 200,
    '""',
]


@pytest.mark.parametrize("header", ["ETag", "X_Linked_Etag"])
@pytest.mark.parametrize("etag", TRAVERSALS)
def test_etag_cannot_be_a_path(hub: HostileHub, tmp_path: Path, header: str, etag: str) -> None:
    (tmp_path / "home" / "victim").write_bytes(b"{}")
    before = {path: content for path, content in everything(tmp_path).items() if "cache" not in path.parts}
    hub.responses["head"] = head(**{header: etag})
    with pytest.raises(OSError, match=r"(ETag|Etag): .*expected only letters"):
        download(HUB)
    after = {path: content for path, content in everything(tmp_path).items() if "cache" not in path.parts}
    assert after == before
    assert not list((tmp_path / "home" / "cache").rglob("config.json"))


def test_wrong_checksum_removes_nothing_outside_the_cache(hub: HostileHub, tmp_path: Path) -> None:
    """An older release or another program may have created a link from the cache to another folder."""
    victim = tmp_path / "home" / "victim"
    victim.write_bytes(b"{}")
    snapshot = download(HUB).folder
    (snapshot / "config.json").unlink()
    blobs = snapshot.parents[1] / "blobs"
    blob = next(path for path in blobs.iterdir() if path.read_bytes() == b"{}")
    blob.unlink()
    blob.symlink_to(victim)
    right = hub.listing()
    wrong = right.replace(hashlib.sha1(b"blob 2\0{}").hexdigest().encode(), b"0" * 40)
    hub.responses["listing"] = lambda _: [response(wrong, {})]
    with pytest.raises(OSError, match="checksum mismatch"):
        download(HUB)
    assert victim.read_bytes() == b"{}"
    assert not blob.is_symlink()


def test_only_cached_blobs_are_removed(tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "models--eve--model" / "snapshots" / COMMIT, tmp_path / "models--eve--model" / "blobs"
    (snapshot / "data").mkdir(parents=True)
    blobs.mkdir()
    for target, link, kept in (
        (tmp_path / "victim", snapshot / "config.json", True),
        (blobs / "a", snapshot / "x.npz", False),
        (blobs / "b", snapshot / "data" / "x.npz", False),
    ):
        target.write_bytes(b"{}")
        link.symlink_to(os.path.relpath(target, link.parent))
        hub_client._remove(snapshot, link)
        assert not link.is_symlink()
        assert target.exists() == kept


def test_all_downloaded_files_are_verified_even_if_one_fails(hub: HostileHub) -> None:
    right = {name: {"rfilename": name, "size": len(body), "blobId": git_hash(body)} for name, body in hub.files.items()}
    wrong = [entry | {"blobId": "0" * 40} for entry in right.values()]
    hub.responses["listing"] = lambda _: [response(hub.listing(siblings=wrong), {})]
    with pytest.raises(OSError, match="checksum mismatch"):
        download(HUB)
    del hub.responses["listing"]
    hub.requests.clear()
    download(HUB)  # this would not fetch files that were kept
    assert sum(request.startswith("GET /eve") for _, request, _ in hub.requests) == len(right)


@pytest.mark.parametrize("commit", ["../../../../victim", "main", "A" * 40, "a" * 39, "a" * 40 + "/x", 5, None])
def test_commit_cannot_be_a_path(hub: HostileHub, tmp_path: Path, commit: object) -> None:
    hub.responses["listing"] = lambda _: [response(hub.listing(sha=commit), {})]
    with pytest.raises(OSError, match="40 hex digits"):
        download(HUB)
    del hub.responses["listing"]
    hub.responses["head"] = head(X_Repo_Commit=str(commit))
    with pytest.raises(OSError, match="40 hex digits"):
        download(HUB)
    assert not list(tmp_path.rglob("config.json"))


@pytest.mark.parametrize("name", ["..\\x.npz", "\0.npz", "C:x.npz", "\x1b[2J.npz", "x\n.npz", "\ud800.npz"])
def test_listed_file_name_cannot_be_a_path(hub: HostileHub, name: str) -> None:
    hub.responses["listing"] = lambda _: [response(hub.listing(siblings=[{"rfilename": name, "size": 1}]), {})]
    with pytest.raises(OSError, match="is not a valid file name"):
        download(HUB)
    assert [method for _, method, _ in hub.requests] == [f"GET /api/models/{REPOSITORY}/revision/main"]


# ---- Redirects and the token -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("location", ["file:///etc/passwd", "ftp://127.0.0.1/x", "data:,x"])
@pytest.mark.parametrize("kind", ["listing", "head", "file"])
def test_redirects_to_other_schemes_are_rejected(hub: HostileHub, kind: str, location: str) -> None:
    redirect = response(b"", {"Location": location, "ETag": '"e"', "X-Repo-Commit": COMMIT}, status="302 Found")
    hub.responses[kind] = lambda _: [redirect]
    with pytest.raises(OSError, match="not allowed"):
        download(HUB)


@pytest.mark.parametrize("kind", ["listing", "head", "file"])
def test_redirect_loops_are_aborted(hub: HostileHub, kind: str) -> None:
    headers = {"ETag": '"e"', "X-Repo-Commit": COMMIT}
    hub.responses[kind] = lambda name: [
        response(
            b"", headers | {"Location": f"/api/models/{name}" if kind == "listing" else f"/x/{name}"}, status="302 F"
        )
    ]
    with pytest.raises(OSError, match="redirects"):
        download(HUB)
    assert len(hub.requests) < 70


def test_listing_redirect_to_another_host_is_rejected(hub: HostileHub) -> None:
    hub.responses["listing"] = lambda _: [response(b"", {"Location": f"{hub.other_host}/api/x"}, status="302 Found")]
    with pytest.raises(OSError, match="not allowed"):
        download(HUB)
    assert {host for host, _, _ in hub.requests} == {"hub"}


def test_token_is_sent_only_to_the_hub(hub: HostileHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)

    def redirect(name: str) -> Iterable[bytes]:
        headers = {"ETag": f'"{name}"', "X-Repo-Commit": COMMIT, "X-Linked-Size": str(len(hub.files[name]))}
        return [response(b"", headers | {"Location": f"{hub.other_host}/hop/{name}"}, False, "302 Found")]

    def hop(name: str) -> Iterable[bytes]:  # then redirect to the hub's port under another host name
        if hub.requests[-1][1] == f"GET /hop/{name}":
            there = hub.url.replace("127.0.0.1", "localhost")
            return [response(b"", {"Location": f"{there}/there/{name}"}, status="302 Found")]
        return [response(hub.files[name], {})]

    hub.responses |= {"head": redirect, "file": hop}
    download(HUB)
    seen = {(host, request.split("/")[1] in ("hop", "there")): token for host, request, token in hub.requests}
    assert seen == {("hub", False): f"Bearer {TOKEN}", ("other_host", True): None, ("hub", True): None}


@pytest.mark.parametrize(
    ("url", "location", "followed"),
    [
        ("https://hub.org/x", "https://store.net/y", True),
        ("https://hub.org/x", "/y", True),
        ("http://hub.org/x", "https://hub.org/y", True),
        ("https://hub.org/x", "http://store.net/y", False),
        ("https://hub.org/x", "http://hub.org/y", False),
    ],
)
def test_redirects_from_https_to_http_are_rejected(url: str, location: str, followed: bool) -> None:
    from vitreous.common.hub_client import Exchange, check_redirect

    reply = httpx2.Response(302, headers={"Location": location})
    with contextlib.nullcontext() if followed else pytest.raises(OSError, match="not allowed"):
        check_redirect(Exchange("config.json"), httpx2.Request("GET", url), reply)


@pytest.mark.parametrize(
    ("endpoint", "url", "sent"),
    [
        ("https://hub.org", "https://hub.org/x", True),
        ("http://hub.org", "https://hub.org/x", True),
        ("https://hub.org", "https://huggingface.co/x", True),
        ("https://hub.org", "http://hub.org/x", False),
        ("https://hub.org", "https://hub.org.evil.net/x", False),
        ("http://hub.org:80", "http://hub.org:81/x", False),
        ("https://hub.org", "http://huggingface.co/x", False),
    ],
)
def test_token_is_sent_only_to_trusted_hosts(
    monkeypatch: pytest.MonkeyPatch, endpoint: str, url: str, sent: bool
) -> None:
    from vitreous.common.hub_client import may_see_token

    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    assert may_see_token(httpx2.URL(url)) == sent


# ---- Size and time limits --------------------------------------------------------------------------------------------

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: application/json\r\n\r\n"


def endless(_: str) -> Iterator[bytes]:
    yield CHUNKED
    yield from itertools.repeat(b"100000\r\n" + b" " * (1 << 20) + b"\r\n")


def drip(start: bytes, each: bytes) -> Callable[[str], Iterator[bytes]]:
    def reply(_: str) -> Iterator[bytes]:
        yield start
        while True:
            time.sleep(0.05)
            yield each

    return reply


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(endless, id="endless"),
        pytest.param(lambda _: [response(b"", {"Content-Length": str(6 << 30)})], id="declared"),
        pytest.param(lambda _: [response(gzip.compress(b" " * (1 << 20)), {"Content-Encoding": "gzip"})], id="packed"),
    ],
)
def test_oversized_listing_is_rejected(
    hub: HostileHub, monkeypatch: pytest.MonkeyPatch, reply: Callable[[str], Iterable[bytes]]
) -> None:
    monkeypatch.setattr("vitreous.common.hub_client.MAX_METADATA_BYTES", 1 << 19)
    hub.responses["listing"] = reply
    with pytest.raises(
        OSError, match=r"the response to GET http://127.0.0.1:\d+/api/models/eve/model\S* (exceeds|has)"
    ):
        download(HUB)
    assert hub.sent < 1 << 24


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["listing", "head", "file"])
@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(drip(b"HTTP/1.1 200 OK\r\nX-", b"x"), id="headers"),
        pytest.param(drip(b"HTTP/1.1 200 OK\r\nContent-Length: 700\r\n\r\n", b" "), id="body"),
        pytest.param(drip(CHUNKED + b"1;", b"x"), id="chunk"),
        pytest.param(drip(b"", b""), id="silence"),
    ],
)
def test_slow_response_is_aborted(
    hub: HostileHub, short_timeouts: None, kind: str, reply: Callable[[str], Iterable[bytes]]
) -> None:
    hub.responses[kind] = reply
    with pytest.raises(OSError, match=r"127\.0\.0\.1:\d+"):
        download(HUB)


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(endless, id="endless"),
        pytest.param(lambda _: [response(b"x" * 5000, {})], id="declared"),
    ],
)
def test_file_larger_than_listed_is_rejected(hub: HostileHub, reply: Callable[[str], Iterable[bytes]]) -> None:
    hub.responses["file"] = reply
    with pytest.raises(OSError, match=r"the response to GET http://127.0.0.1:\d+/\S+/(config.json|model.safetensors) "):
        download(HUB)
    assert hub.sent < 1 << 24


def test_size_that_differs_from_the_listing_is_rejected(hub: HostileHub) -> None:
    hub.responses["head"] = head(X_Linked_Size=str(1 << 50))
    with pytest.raises(OSError, match=r"has a size of 1,125,899,906,842,624 bytes, but the Hub lists"):
        download(HUB)
    hub.responses["listing"] = lambda _: [response(hub.listing(siblings=[{"rfilename": "x.npz"}]), {})]
    with pytest.raises(OSError, match=r"x.npz .* 1,125,899,906.8 MB"):
        download(HUB)


@pytest.mark.slow
def test_repeatedly_broken_connections_are_aborted_as_too_slow(
    hub: HostileHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitreous.common.network.WINDOW_SECONDS", 0.5)
    hub.files = {"model.safetensors": b"x" * 100_000}

    def broken(_: str) -> Iterable[bytes]:
        return [response(b"x" * 10, {"Content-Length": "100000"})]

    hub.responses["file"] = broken
    with pytest.raises(OSError, match=r"eve/model is too slow: \d+ bytes in \d+ s"):
        download(HUB)


@pytest.mark.slow
def test_slow_but_valid_download_succeeds(hub: HostileHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitreous.common.network.WINDOW_SECONDS", 0.5)
    hub.files = {"model.safetensors": bytes(range(250)) * 400}

    def slow(name: str) -> Iterator[bytes]:  # above the minimum rate, over several windows
        content = hub.files[name]
        yield response(b"", {"Content-Length": str(len(content))})
        for i in range(0, len(content), 5_000):
            time.sleep(0.05)
            yield content[i : i + 5_000]

    hub.responses["file"] = slow
    folder = download(HUB).folder
    assert (folder / "model.safetensors").read_bytes() == hub.files["model.safetensors"]


@pytest.mark.parametrize("header", [{"Retry-After": "99999999"}, {"RateLimit": '"api";r=0;t=99999999'}])
def test_long_retry_after_is_not_awaited(hub: HostileHub, header: dict[str, str]) -> None:
    hub.responses["file"] = lambda _: [response(b"", header, status="429 Too Many Requests")]
    with pytest.raises(OSError, match="requests a retry after 99,999,999 s"):
        download(HUB)


def test_control_characters_do_not_reach_the_terminal(hub: HostileHub) -> None:
    hub.responses["listing"] = lambda _: [response(b'{"error": "\x1b[2J"}', {}, status="500 Error")]
    with pytest.raises(OSError, match="500") as caught:
        download(HUB)
    assert str(caught.value).isprintable()
