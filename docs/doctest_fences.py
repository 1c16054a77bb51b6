"""Griffe extension: doctests in docstrings become code blocks. Markdown would read `>>>` as a quotation."""

import re
from typing import Any

import griffe

DOCTEST = re.compile(r"((?:^[ ]*>>> .*\n?(?:^[ ]*(?!>>>)\S.*\n?)*)+)", re.MULTILINE)


class DoctestFences(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            text = re.sub(r"\s*# doctest: .*", "", obj.docstring.value)
            obj.docstring.value = DOCTEST.sub(lambda found: f"```pycon\n{found[1].rstrip()}\n```\n", text)
