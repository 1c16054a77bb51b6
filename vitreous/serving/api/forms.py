"""Multipart forms, parsed in memory. The framework's own parser would write large files to the disk."""

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from vitreous.serving.errors import ApiError

MOST = 32  # parts of a form, and headers of one: each costs time that its few bytes do not show


def form_field(body: bytes, content_type: str, name: str) -> bytes:
    """The content of the first field called `name` of a multipart/form-data body; ApiError 400 if there is none.

    >>> body = b'--x\\r\\nContent-Disposition: form-data; name="image"\\r\\n\\r\\nabc\\r\\n--x--\\r\\n'
    >>> form_field(body, "multipart/form-data; boundary=x", "image")
    b'abc'
    """
    boundary = parse_options_header(content_type)[1].get(b"boundary")
    if not boundary:
        raise ApiError(400, "bad_form", "the Content-Type of the form does not say its boundary")
    reader = _Reader(name.encode())
    try:
        parser = MultipartParser(boundary, reader.callbacks())  # type: ignore[arg-type]
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise ApiError(400, "bad_form", f"the form cannot be read: {error}") from None
    if not reader.found or not reader.whole:
        raise ApiError(400, "no_image", f"the form has no field {name!r}, or ends within it")
    return b"".join(reader.parts)


class _Reader:
    """Follows the parser, which tells where things begin and end."""

    def __init__(self, wanted: bytes):
        self.wanted, self.parts = wanted, list[bytes]()
        self.count, self.headers = 0, 0
        self.header, self.value, self.taking, self.found, self.whole = b"", b"", False, False, False

    def callbacks(self) -> dict[str, object]:
        return {
            "on_part_begin": self.on_part_begin,
            "on_header_field": self.on_field,
            "on_header_value": self.on_value,
            "on_header_end": self.on_header_end,
            "on_part_data": self.on_data,
            "on_part_end": self.on_part_end,
        }

    def on_part_begin(self) -> None:
        self.count, self.headers = self.count + 1, 0
        if self.count > MOST:
            raise ApiError(400, "bad_form", f"the form has more than {MOST} parts")

    def on_field(self, data: bytes, start: int, end: int) -> None:
        self.header += data[start:end]

    def on_value(self, data: bytes, start: int, end: int) -> None:
        self.value += data[start:end]

    def on_header_end(self) -> None:
        self.headers += 1
        if self.headers > MOST:
            raise ApiError(400, "bad_form", f"a part of the form has more than {MOST} headers")
        if self.header.lower() == b"content-disposition" and not self.found:
            self.taking = self.found = parse_options_header(self.value)[1].get(b"name") == self.wanted
        self.header = self.value = b""

    def on_data(self, data: bytes, start: int, end: int) -> None:
        if self.taking:
            self.parts.append(data[start:end])

    def on_part_end(self) -> None:
        self.whole, self.taking = self.whole or self.taking, False
