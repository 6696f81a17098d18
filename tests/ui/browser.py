"""What the tests in a browser share."""

from collections.abc import Callable

from playwright.sync_api import Locator, Page

TIMEOUT_MS = 60_000.0
"""Milliseconds that a busy machine may take for anything."""

Picture = Callable[[Page | Locator, str], None]
"""Takes a picture of what is shown, under a name."""
