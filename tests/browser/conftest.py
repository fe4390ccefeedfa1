"""The browser for the tests of a module, and pages that must do nothing wrong."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.browser import CHROMIUM, Visit, started_browser, visited

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from playwright.sync_api import Browser


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a browser where there is none; one worker starts it."""
    here = __file__.rpartition("/")[0]
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.xdist_group("browser"))
            if CHROMIUM is None:
                item.add_marker(pytest.mark.skip(reason="no Chromium on this system"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    # For a module and not for all: while Playwright runs, no other event loop can in this thread.
    with started_browser() as browser:
        yield browser


@pytest.fixture
def visit(browser: Browser) -> Callable[..., AbstractContextManager[Visit]]:
    """Open a page that must report no error and ask no other server."""

    @contextlib.contextmanager
    def opened(url: str, *, expected_errors: str = "", **settings: Any) -> Iterator[Visit]:
        with visited(browser, **settings) as seen:
            seen.page.goto(url)
            yield seen
            wrong = [
                each for each in seen.errors if not expected_errors or expected_errors not in each
            ]
            assert not wrong
            assert seen.requests
            assert not seen.outside(url)

    return opened
