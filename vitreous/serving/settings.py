"""Server settings. This file does not import torch, which keeps the command line fast."""

import re
from dataclasses import dataclass, field

from vitreous.common.checks import check_real, check_whole, fail

MEGABYTE = 10**6
ORIGIN = re.compile(r"https?://[a-z0-9.-]+(:[0-9]{1,5})?|https?://\[[0-9a-f:]+\](:[0-9]{1,5})?")
MAX_JSON_BYTES = MEGABYTE  # lower than for images, because parsed lists take far more memory than their JSON text


@dataclass(frozen=True)
class Settings:
    """Address and limits of a server. Values are validated on creation."""

    host: str = "127.0.0.1"
    port: int = 8000
    max_batch: int = 16  # images per forward pass
    max_wait_ms: float = 5.0  # longest wait for a batch to fill
    queue: int = 64  # maximum number of waiting requests; further requests get status 429
    max_body_mb: float = 20.0
    max_pixels: int = 64_000_000  # per image; read from the image header before decoding
    timeout: float = 30.0  # seconds per request, from its first byte; explanations may take ten times as long
    api_key: str | None = field(default=None, repr=False)
    cors_origins: tuple[str, ...] = ()  # websites whose scripts may use the API, such as https://app.example; * for all
    frame_origins: tuple[str, ...] = ()  # websites that may show the page in a frame

    def __post_init__(self) -> None:
        check_whole("port", self.port, 0, 65535)
        check_whole("max_batch", self.max_batch, 1, 4096)
        check_real("max_wait_ms", self.max_wait_ms, 0, 10_000)
        check_whole("queue", self.queue, 1, 65536)
        check_real("max_body_mb", self.max_body_mb, 0.001, 1000)
        check_whole("max_pixels", self.max_pixels, 1, 178_956_970)
        check_real("timeout", self.timeout, 0.1, 3600)
        if self.api_key is not None and not (self.api_key.isascii() and self.api_key.isprintable() and self.api_key):
            fail("api_key", "...", "one or more printable ASCII characters")
        for name in ("cors_origins", "frame_origins"):
            for origin in getattr(self, name):
                if origin != "*" and not ORIGIN.fullmatch(origin):
                    fail(name, origin, "* or the address of a website without a path, such as https://app.example")

    @property
    def max_body(self) -> int:
        """Maximum body size in bytes."""
        return int(self.max_body_mb * MEGABYTE)
