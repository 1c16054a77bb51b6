"""Finds Chromium for the tests in tests/browser."""

import os
import shutil

NAMES = ("chromium", "chromium-browser", "google-chrome")


def browser_path() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def skip_browser_tests() -> bool:
    return browser_path() is None and os.environ.get("VITREOUS_BROWSER") != "required"
