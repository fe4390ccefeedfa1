"""The browser of the system, driven by Playwright, and what a page did in it."""

from __future__ import annotations

import contextlib
import shutil
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from playwright.sync_api import sync_playwright

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
"""The program; None if there is none."""

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WIDTHS = {"phone": 360, "tablet": 820, "desktop": 1440}
"""Widths, in CSS pixels, of the screens that the pages are made for."""

PATIENCE_MILLISECONDS = 30_000
"""Time for which Playwright waits for what must come."""

REMEMBER_EVENTS = """
window.events = 0;
const parse = JSON.parse;
JSON.parse = (text) => {
  const parsed = parse(text);
  if (parsed && parsed.taskmanager_id) {
    window.lastStatus = parse(text);
    window.events += 1;
    window.dispatchEvent(new Event("status"));
  }
  return parsed;
};
"""
"""Keeps the status that the page got last, and counts them."""

NEXT_STATUS = """
() => new Promise((resolve) => {
  window.addEventListener("status", () => setTimeout(resolve), { once: true });
})
"""
"""Resolves when the next status has come and is shown."""

READ_TABLE = """
(section) => [...document.querySelectorAll(`#${section} > .scroll > table`)].flatMap((table) => {
  const heads = [...table.querySelectorAll(":scope > thead th")].map((head) => head.textContent);
  const rows = [...table.querySelectorAll(":scope > tbody > tr:not(.detail)")];
  return rows.map((row) => Object.fromEntries([...row.children].map((cell, at) => {
    const exact = cell.querySelector("data");
    return [heads[at], exact ? exact.value : cell.textContent];
  })));
})
"""


class Visit(NamedTuple):
    """A page, and what happened in it.

    Attributes:
        page: The page.
        errors: Errors of scripts, and what the console reported as an error or a warning.
        requests: URLs of all requests.
    """

    page: Page
    errors: list[str]
    requests: list[str]

    def table(self, section: str) -> list[dict[str, str]]:
        """Return the rows of a section's table by the heads of its columns.

        Numbers are exact, as ``<data>`` has them.
        """
        found: list[dict[str, str]] = self.page.evaluate(READ_TABLE, section)
        return found

    def wait_for_next_status(self) -> None:
        """Wait until the page has shown the next status."""
        self.page.evaluate(NEXT_STATUS)

    def outside(self, url: str) -> list[str]:
        """Return the requests that went to another server than that of a URL."""
        own = urlsplit(url).netloc
        return [each for each in self.requests if urlsplit(each).netloc != own]


@contextlib.contextmanager
def started_browser() -> Iterator[Browser]:
    """Run the browser of the system, without a window."""
    assert CHROMIUM is not None, "there is no Chromium; on Debian: apt-get install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def visited(browser: Browser, **settings: Any) -> Iterator[Visit]:
    """Open a page of a new profile, on which nothing is loaded yet.

    Args:
        browser: The browser.
        settings: Those of a Playwright context, such as ``viewport`` and ``color_scheme``.
    """
    context = browser.new_context(**settings)
    context.set_default_timeout(PATIENCE_MILLISECONDS)
    try:
        yield _visit(context)
    finally:
        context.close()


def _visit(context: BrowserContext) -> Visit:
    context.add_init_script(REMEMBER_EVENTS)
    visit = Visit(context.new_page(), [], [])

    def on_console(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            visit.errors.append(f"{message.type}: {message.text}")

    def on_request(request: Request) -> None:
        visit.requests.append(request.url)

    visit.page.on("console", on_console)
    visit.page.on("pageerror", lambda error: visit.errors.append(str(error)))
    visit.page.on("request", on_request)
    return visit


def picture(visit: Visit, path: Path, **settings: Any) -> None:
    """Write a picture of the whole page."""
    visit.page.screenshot(path=str(path), **{"full_page": True, **settings})
