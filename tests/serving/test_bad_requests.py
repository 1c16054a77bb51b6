"""Invalid requests get an error with a reason, never a 500, and leave no files behind."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from image_bombs import SIGNATURE, bomb, chunk, sides
from images import encoded, smooth
from live_server import HOST, Live, process, read_reply

PNG = encoded(smooth(40, 50))
JPEG = encoded(smooth(40, 50), "JPEG")
WEBP = encoded(smooth(40, 50), "WEBP")
LIMIT = 200_000  # bytes of a body


def form(field: bytes, data: bytes, end: bytes = b"\r\n--x--\r\n") -> bytes:
    return b'--x\r\nContent-Disposition: form-data; name="' + field + b'"; filename="a"\r\n\r\n' + data + end


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("temporary")


@pytest.fixture(scope="module")
def live(checkpoint: Path, folder: Path) -> Iterator[Live]:
    flags = ("--max-body-mb", str(LIMIT / 1e6), "--timeout", "2")
    with process([checkpoint], *flags, TMPDIR=str(folder)) as live:
        yield live
        assert not list(folder.iterdir())  # no request may write a file


FORM = "multipart/form-data; boundary=x"
TWO_IMAGES = form(b"image", PNG, b"\r\n") + form(b"image", PNG)
METADATA = chunk(b"eXIf", b"MM\0*\0\0\0\x08\0\0")  # Pillow may decode the whole image to find its orientation
HUGE = SIGNATURE + sides(2**16) + chunk(b"IDAT", b"x")
WEBP_BOMB = b"RIFF\x40\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0" + b"\xfe\x3f\0" * 2 + WEBP[12:]
BAD: dict[str, tuple[str, str, bytes, str | None, int, str]] = {
    "nothing": ("POST", "/v1/classify", b"", "image/png", 400, "no_image"),
    "text": ("POST", "/v1/classify", b"a cat", "image/png", 415, "unsupported_type"),
    "text that says so": ("POST", "/v1/classify", b"a cat", "text/plain", 415, "unsupported_type"),
    "another format": ("POST", "/v1/classify", encoded(smooth(9, 9), "GIF"), "image/gif", 415, "unsupported_type"),
    "a disguised one": ("POST", "/v1/embed", encoded(smooth(9, 9), "BMP"), "image/png", 415, "unsupported_type"),
    "an URL": ("POST", "/v1/classify", b"http://127.0.0.1/cat.jpg", None, 415, "unsupported_type"),
    "truncated PNG": ("POST", "/v1/classify", PNG[:-500], "image/png", 422, "unreadable_image"),
    "truncated JPEG": ("POST", "/v1/embed", JPEG[: len(JPEG) // 2], "image/jpeg", 422, "unreadable_image"),
    "truncated WebP": ("POST", "/v1/classify", WEBP[: len(WEBP) // 2], "image/webp", 422, "unreadable_image"),
    "first bytes only": ("POST", "/v1/classify", PNG[:8], "image/png", 422, "unreadable_image"),
    "header only": ("POST", "/v1/explain", PNG[:40], "image/png", 422, "unreadable_image"),
    "damaged": ("POST", "/v1/classify", PNG[:60] + bytes(100) + PNG[160:], "image/png", 422, "unreadable_image"),
    "a bomb": ("POST", "/v1/classify", bomb(12_000), "image/png", 413, "too_many_pixels"),
    "a bomb to be explained": ("POST", "/v1/explain", bomb(12_000), "image/png", 413, "too_many_pixels"),
    "a bomb for the page": ("POST", "/v1/images", bomb(12_000), "image/png", 413, "too_many_pixels"),
    "a bomb with metadata": ("POST", "/v1/embed", bomb(12_000, METADATA), "image/png", 413, "too_many_pixels"),
    "a bomb that says it is small": ("POST", "/v1/embed", bomb(12_000, sides(8)), "image/png", 413, "too_many_pixels"),
    "a WebP bomb": ("POST", "/v1/embed", WEBP_BOMB, "image/webp", 413, "too_many_pixels"),
    "more than Pillow opens": ("POST", "/v1/embed", HUGE, "image/png", 413, "too_many_pixels"),
    "too many bytes": ("POST", "/v1/classify", PNG + bytes(LIMIT), "image/png", 413, "body_too_large"),
    "much JSON": ("POST", "/v1/images/0/masked", b" " * (LIMIT + 1), "application/json", 413, "body_too_large"),
    "form without boundary": ("POST", "/v1/classify", form(b"image", PNG), "multipart/form-data", 400, "bad_form"),
    "form of a long boundary": ("POST", "/v1/classify", form(b"image", PNG), f"{FORM}{'y' * 300}", 400, "bad_form"),
    "form of another boundary": ("POST", "/v1/classify", form(b"image", PNG), f"{FORM}y", 400, "bad_form"),
    "form without image": ("POST", "/v1/classify", form(b"picture", PNG), FORM, 400, "no_image"),
    "form that ends early": ("POST", "/v1/classify", form(b"image", PNG, b""), FORM, 400, "no_image"),
    "form with two images": ("POST", "/v1/embed", TWO_IMAGES, FORM, 400, "bad_form"),
    "form with text": ("POST", "/v1/classify", form(b"image", b"a cat"), FORM, 415, "unsupported_type"),
    "form of many parts": ("POST", "/v1/classify", b"--x\r\nA: b\r\n\r\n\r\n" * 9999, FORM, 400, "bad_form"),
    "form of many headers": ("POST", "/v1/classify", b"--x\r\n" + b"A: b\r\n" * 9999, FORM, 400, "bad_form"),
    "no form at all": ("POST", "/v1/classify", PNG, FORM, 400, "bad_form"),
    "bad JSON": ("POST", "/v1/images/0/masked", b'{"patches": [1,', "application/json", 400, "bad_json"),
    "JSON of another kind": ("POST", "/v1/images/0/masked", b"[]", "application/json", 422, "bad_parameter"),
    "unknown model": ("POST", "/v1/classify?model=other", PNG, "image/png", 404, "unknown_model"),
    "unknown picture": ("GET", "/v1/images/0123/lens", b"", None, 404, "unknown_image"),
    "unknown parameter": ("POST", "/v1/classify?topp=3", PNG, "image/png", 422, "bad_parameter"),
    "unknown parameter of the page": ("GET", "/v1/filters?size=3", b"", None, 422, "bad_parameter"),
    "parameter given twice": ("POST", "/v1/classify?top=3&top=4", PNG, "image/png", 422, "bad_parameter"),
    "top 0": ("POST", "/v1/classify?top=0", PNG, "image/png", 422, "bad_parameter"),
    "top of words": ("POST", "/v1/classify?top=many", PNG, "image/png", 422, "bad_parameter"),
    "top without end": ("POST", f"/v1/classify?top={'9' * 5000}", PNG, "image/png", 422, "bad_parameter"),
    "wrong method": ("GET", "/v1/classify", b"", None, 405, "method_not_allowed"),
    "wrong method for the page": ("POST", "/", b"", None, 405, "method_not_allowed"),
    "made-up method": ("BREW", "/v1/classify", b"", None, 400, "bad_http"),
    "wrong path": ("GET", "/v2/classify", b"", None, 404, "not_found"),
    "folder": ("GET", "/page/", b"", None, 404, "not_found"),
    "traversal": ("GET", "/page/../app.py", b"", None, 404, "not_found"),
    "traversal, quoted": ("GET", "/page/..%2fapp.py", b"", None, 404, "not_found"),
    "traversal, quoted twice": ("GET", "/page/..%252fapp.py", b"", None, 404, "not_found"),
    "traversal, dots quoted": ("GET", "/page/%2e%2e/%2e%2e/cli.py", b"", None, 404, "not_found"),
    "traversal, absolute": ("GET", "/page//etc/passwd", b"", None, 404, "not_found"),
    "traversal, backslashes": ("GET", "/page/..\\..\\cli.py", b"", None, 404, "not_found"),
    "zero byte": ("GET", "/page/index.html%00.js", b"", None, 404, "not_found"),
    "path that is no text": ("GET", "/page/%ff%fe", b"", None, 404, "not_found"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_requests(live: Live, name: str) -> None:
    method, path, body, kind, status, code = BAD[name]
    answer = live.request(method, path, body, kind)
    assert (answer.status, answer.code) == (status, code)


@pytest.mark.slow
def test_decompression_bombs_take_no_memory(live: Live) -> None:
    live.request("POST", "/v1/classify", PNG)
    before = live.memory
    for path in ("/v1/classify", "/v1/embed", "/v1/explain", "/v1/images"):
        for data in (bomb(12_000), bomb(12_000, METADATA), bomb(12_000, sides(8)), WEBP_BOMB):
            assert live.request("POST", path, data).status == 413
    assert live.memory < before + 50


@pytest.mark.parametrize("end", [b"", b"\r\n\r\n"])
def test_large_headers_take_no_memory(live: Live, end: bytes) -> None:
    before = live.memory
    start = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
    for large in (start + b"X: " + b"a" * 10**7, start + b"X: y\r\n" * 10**6, b"GET /" + b"a" * 10**7):
        assert live.send(large + end).code == "headers_too_large"
    assert live.memory < before + 20


def test_too_many_bytes_in_chunks(live: Live) -> None:
    """Without Content-Length, bytes are counted as they arrive."""
    head = f"POST /v1/classify HTTP/1.1\r\nHost: {HOST}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    one = b"10000\r\n" + bytes(2**16) + b"\r\n"
    answer = live.send(head, *[one] * 8)
    assert (answer.status, answer.code) == (413, "body_too_large")
    assert answer.headers["connection"] == "close"


def test_an_image_may_be_sent_in_chunks(live: Live) -> None:
    head = f"POST /v1/classify HTTP/1.1\r\nHost: {HOST}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    parts = [PNG[start : start + 700] for start in range(0, len(PNG), 700)]
    chunks = [b"%x\r\n" % len(part) + part + b"\r\n" for part in parts]
    assert live.send(head, *chunks, b"0\r\n\r\n").json == live.request("POST", "/v1/classify", PNG).json


def test_a_too_large_content_length_is_rejected_before_the_body(live: Live) -> None:
    """A client that sends Expect: 100-continue gets the error at once."""
    head = f"POST /v1/classify HTTP/1.1\r\nHost: {HOST}\r\nExpect: 100-continue\r\nContent-Length: 9999999\r\n\r\n"
    answer = live.send(head.encode())
    assert (answer.status, answer.code) == (413, "body_too_large")


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/v1/classify", "/v1/images", "/v1/images/0/masked"])
def test_slow_uploads_time_out(live: Live, path: str) -> None:
    kind = "application/json" if path.endswith("masked") else "image/png"
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: {kind}\r\nContent-Length: {len(PNG)}\r\n\r\n".encode()
    )
    answer = live.send(head, *[PNG[i : i + 1] for i in range(6)], pause=0.5)
    assert (answer.status, answer.code) == (408, "slow_upload")
    assert answer.headers["connection"] == "close"


@pytest.mark.parametrize(
    "data",
    [
        b"\0\1\2\3",
        b"GET\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost x\r\n\r\n",
        b"POST /v1/classify HTTP/1.1\r\nHost: [::1]\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/classify HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"POST /v1/classify HTTP/1.1\r\nHost: [::1]\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"POST /v1/embed HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
def test_invalid_http_gives_4xx(live: Live, data: bytes) -> None:
    answer = live.send(data)
    assert 400 <= answer.status < 500
    assert answer.code


def test_disconnecting_clients_do_not_affect_others(live: Live) -> None:
    head = f"POST /v1/classify HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {len(PNG)}\r\n\r\n".encode()
    for data in (head, head + PNG[:100], head + PNG):
        for _ in range(10):
            with socket.create_connection((HOST, live.port)) as connection:
                connection.sendall(data)
    assert live.request("POST", "/v1/classify", PNG).status == 200


def test_pipelined_requests_get_responses_in_order(live: Live) -> None:
    head = f"POST /v1/classify?top=%d HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {len(PNG)}\r\n\r\n"
    with socket.create_connection((HOST, live.port), timeout=30) as connection:
        for top in (1, 2):
            connection.sendall((head % top).encode() + PNG)
        counts = []
        for _ in range(2):
            counts.append(len(read_reply(connection).json["predictions"]))
            connection.settimeout(30)
    assert counts == [1, 2]


def test_no_5xx_and_no_leak_after_all_bad_requests(live: Live) -> None:
    assert live.request("POST", "/v1/classify", JPEG, "image/jpeg").status == 200
    figures = live.request("GET", "/metrics").body.decode()
    assert not [line for line in figures.splitlines() if 'status="5' in line and "/readyz" not in line]
    assert "vitreous_held_bytes 0\n" in figures
    assert "vitreous_open_requests 1\n" in figures  # this one
