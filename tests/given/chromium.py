"""A real browser without a screen: Debian's chromium (`apt-get install chromium`), Chrome, or what CHROMIUM names.

Where there is none, a test that wants it is skipped; where CI is set, it fails.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, sync_playwright

from emulators.lacking import find_chromium

FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync")


@contextmanager
def running_browser() -> Iterator[Browser]:
    """A browser with a new and empty profile."""
    chromium = find_chromium()
    if chromium is None:
        missing = "there is no chromium here: apt-get install chromium, or name one in CHROMIUM"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
        yield running
        running.close()
