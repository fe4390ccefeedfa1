"""The map outputs and regions of a shuffle, which a row of the status page opens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from axe_playwright_python.sync_playwright import Axe
from msgspec import structs
from playwright.sync_api import expect

from sluice.protocol.access_token import make_access_token
from sluice.protocol.identity import ClusterSecrets
from sluice.shuffle.taskmanager.store.shuffle_page import (
    MAX_REGIONS,
    OutputDetail,
    RegionDetail,
    ShufflePage,
    ShuffleQuery,
    UnknownShuffle,
)
from sluice.shuffle.taskmanager.store.store_status import ShuffleStatus
from tests.browser.rig import PREFIX, prefix_proxy
from tests.support.browser import WIDTHS
from tests.support.shown_status import port_showing
from tools.docs.sample_status import STATUS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from playwright.sync_api import Locator, Page

    Inspect = Callable[[ShuffleQuery], Awaitable[ShufflePage]]

SECRET = bytes(range(32))
HOSTILE = '<img src=x onerror="window.hacked=1">'
LARGE = (1 << 63) - 1
"""A map attempt that a number of JavaScript cannot hold."""

READ_ROWS = """
(table) => {
  const heads = [...table.querySelectorAll(":scope > thead th")].map((head) => head.textContent);
  return [...table.querySelectorAll(":scope > tbody > tr:not(.detail)")].map((row) =>
    Object.fromEntries([...row.children].map((cell, at) => {
      const exact = cell.querySelector("data");
      return [heads[at], exact ? exact.value : cell.textContent];
    })));
}
"""


def output_of(attempt: int) -> OutputDetail:
    regions = (
        RegionDetail(
            "memory", f"/dev/shm/{HOSTILE}", 4096, 70_000 + attempt % 100, 0, 4, False, 0xAB
        ),
        RegionDetail("disk", "/data/1", 8192, 1 << 20, 4, 1, False, 0xFFFFFFFF),
        RegionDetail("remote", "s3://bucket/x", 7, 12, 0, 8, True, 1),
        RegionDetail(),
    )
    total = sum(each.length_bytes for each in regions)
    return OutputDetail(
        attempt, "committed", 8, total, HOSTILE, 2, True, regions, 3 if attempt == 0 else 0
    )


def inspecting(attempts: list[int]) -> Inspect:
    """Return the pages of a shuffle with these map attempts."""

    async def inspect(query: ShuffleQuery) -> ShufflePage:
        left = [each for each in attempts if each >= query.first]
        found = tuple(output_of(each) for each in left[: query.limit])
        after = left[query.limit] if len(left) > query.limit else None
        name, total = query.application, sum(output_of(each).length_bytes for each in attempts)
        return ShufflePage(name, query.shuffle_id, len(attempts), total, found, after)

    return inspect


def url_of(port: int, path: str = "/") -> str:
    return f"http://127.0.0.1:{port}{path}"


def rows_of(table: Locator) -> list[dict[str, str]]:
    found: list[dict[str, str]] = table.evaluate(READ_ROWS)
    return found


def outputs_in(page: Page) -> Locator:
    return page.get_by_role("table", name="Map outputs of the shuffle")


def open_shuffle(page: Page) -> Locator:
    """Open the shuffle with the most bytes; return the table of its map outputs."""
    page.locator("#shuffles button.open").first.click()
    table = outputs_in(page)
    expect(table).to_be_visible()
    return table


def open_regions(page: Page) -> Locator:
    """Open the first map output; return the table of its regions."""
    outputs_in(page).locator("button.open").first.click()
    table = page.get_by_role("table", name="Regions of the map output")
    expect(table).to_be_visible()
    return table


def test_map_outputs_are_asked_for_when_a_shuffle_is_opened(visit):
    with (
        port_showing(lambda: STATUS, inspect=inspecting([0, 5])) as port,
        visit(url_of(port)) as seen,
    ):
        seen.wait_for_next_status()
        assert not [each for each in seen.requests if "/shuffles/" in each]
        table = open_shuffle(seen.page)
        expect(table.locator("> tbody > tr")).to_have_count(2)
        seen.wait_for_next_status()
        asked = [each for each in seen.requests if "/shuffles/" in each]
        assert asked == [url_of(port, "/api/v1/shuffles/app-1/3?first=0&limit=20")]


def test_numbers_are_those_of_the_json(visit):
    with (
        port_showing(lambda: STATUS, inspect=inspecting([0, 5, LARGE])) as port,
        visit(url_of(port)) as seen,
    ):
        table = open_shuffle(seen.page)
        answer = seen.page.request.get(url_of(port, "/api/v1/shuffles/app-1/3"))
        document = answer.json()
        outputs = document["outputs"]
        shown = rows_of(table)
        assert [int(row["Map attempt"]) for row in shown] == [0, 5, LARGE]
        for row, expected in zip(shown, outputs, strict=True):
            left_out = expected["regions_left_out"]
            assert int(row["Regions"]) == len(expected["regions"]) + left_out
            assert int(row["Bytes"]) == expected["length_bytes"]
            assert int(row["Subpartitions"]) == expected["subpartitions"]
            assert int(row["Copies"]) == expected["replicas"]
            assert row["Tiers"] == "memory, disk, remote, empty"
        said = seen.page.locator("#shuffles .paging")
        expect(said).to_contain_text(f"has {document['map_outputs']} committed map outputs")
        regions = rows_of(open_regions(seen.page))
        for row, expected in zip(regions, outputs[0]["regions"], strict=True):
            assert int(row["Bytes"]) == expected["length_bytes"]
            assert int(row["Offset"]) == expected["offset"]
            assert row["Directory"] == (expected["directory"] or "–")
            assert int(row["CRC-32C"], 16) == expected["crc32c"]
        assert [row["Subpartitions"] for row in regions] == [
            "0 to 3",
            "4",
            "all, the same bytes",
            "–",
        ]
        detail = seen.page.locator("#shuffles tr.detail tr.detail")
        expect(detail).to_contain_text("3 more regions are left out")


def test_next_and_previous_show_one_page_each(visit):
    attempts = [LARGE - 44 + each for each in range(45)]
    with (
        port_showing(lambda: STATUS, inspect=inspecting(attempts)) as port,
        visit(url_of(port)) as seen,
    ):
        page = seen.page
        table = open_shuffle(page)
        rows = table.locator("> tbody > tr")
        following = page.get_by_role("button", name="Next")
        previous = page.get_by_role("button", name="Previous")
        expect(previous).to_be_hidden()
        for start in (20, 40):
            following.focus()
            page.keyboard.press("Enter")
            expect(rows.first).to_contain_text(f"{attempts[start]:,}")
        expect(rows).to_have_count(5)
        expect(following).to_be_hidden()
        expect(page.get_by_role("button", name="Reload")).to_be_focused()
        for start in (20, 0):
            previous.click()
            expect(rows.first).to_contain_text(f"{attempts[start]:,}")
        expect(previous).to_be_hidden()


def test_a_map_output_of_many_regions_shows_some_of_them(visit):
    async def inspect(query: ShuffleQuery) -> ShufflePage:
        regions = tuple(RegionDetail("disk", "/data/1", each, 1) for each in range(MAX_REGIONS))
        return ShufflePage(query.application, 3, 1, 1, (OutputDetail(1, regions=regions),))

    with port_showing(lambda: STATUS, inspect=inspect) as port, visit(url_of(port)) as seen:
        open_shuffle(seen.page)
        rows = open_regions(seen.page).locator("> tbody > tr")
        expect(rows).to_have_count(20)
        seen.page.get_by_role("button", name="Show 100 more").click()
        expect(rows).to_have_count(120)


def test_it_opens_and_closes_with_the_keyboard(visit):
    with (
        port_showing(lambda: STATUS, inspect=inspecting([1])) as port,
        visit(url_of(port)) as seen,
    ):
        button = seen.page.locator("#shuffles button.open").first
        button.focus()
        seen.page.keyboard.press("Enter")
        expect(button).to_have_attribute("aria-expanded", "true")
        outputs = outputs_in(seen.page)
        inner = outputs.locator("button.open")
        inner.focus()
        seen.page.keyboard.press("Enter")
        expect(inner).to_have_attribute("aria-expanded", "true")
        expect(seen.page.get_by_role("table", name="Regions of the map output")).to_be_visible()
        button.focus()
        seen.page.keyboard.press("Enter")
        expect(outputs).to_have_count(0)


def test_hostile_names_are_text_and_part_of_the_path(visit):
    name = f"../a b/{HOSTILE}?first=9#"
    asked: list[str] = []
    status = structs.replace(STATUS, partitions=(ShuffleStatus(name, 3, 1, 0, 9, 1),))

    async def inspect(query: ShuffleQuery) -> ShufflePage:
        asked.append(query.application)
        return await inspecting([1])(query)

    with (
        port_showing(lambda: status, inspect=inspect) as port,
        visit(url_of(port)) as seen,
    ):
        table = open_shuffle(seen.page)
        expect(table).to_contain_text(HOSTILE)
        expect(open_regions(seen.page)).to_contain_text(f"/dev/shm/{HOSTILE}")
        assert asked == [name]
        assert not seen.page.evaluate("window.hacked")
        assert not seen.page.locator("img").count()


def test_a_shuffle_that_is_gone_is_explained_in_words(visit):
    async def inspect(query: ShuffleQuery) -> ShufflePage:
        raise UnknownShuffle("No application of this name", value=query.application)

    with (
        port_showing(lambda: STATUS, inspect=inspect) as port,
        visit(url_of(port), expected_errors="404") as seen,
    ):
        seen.page.locator("#shuffles button.open").first.click()
        problem = seen.page.locator("#shuffles .problem")
        expect(problem).to_contain_text("No application of this name")
        expect(problem).to_contain_text("Reload asks again.")
        assert seen.page.locator("#problem").is_hidden()


def test_it_works_behind_a_path_prefix(visit):
    with (
        port_showing(lambda: STATUS, inspect=inspecting([1])) as port,
        prefix_proxy(port) as proxy,
        visit(url_of(proxy, f"{PREFIX}/")) as seen,
    ):
        expect(open_shuffle(seen.page).locator("> tbody > tr")).to_have_count(1)


def test_with_a_secret_it_sends_the_token_of_the_tab(visit):
    token = make_access_token(SECRET, "status", 0).to_text()
    secrets = ClusterSecrets([SECRET])
    with (
        port_showing(lambda: STATUS, secrets=secrets, inspect=inspecting([1])) as port,
        visit(url_of(port), expected_errors="401") as seen,
    ):
        seen.page.locator("#token-text").fill(token)
        seen.page.keyboard.press("Enter")
        expect(open_shuffle(seen.page).locator("> tbody > tr")).to_have_count(1)
        assert not [each for each in seen.requests if token in each]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS.values())
def test_nothing_keeps_people_from_using_it(visit, scheme, width):
    viewport = {"width": width, "height": 800}
    with (
        port_showing(lambda: STATUS, inspect=inspecting(list(range(30)))) as port,
        visit(url_of(port), color_scheme=scheme, viewport=viewport) as seen,
    ):
        open_shuffle(seen.page)
        open_regions(seen.page)
        found = Axe().run(seen.page).response["violations"]
        assert not [each["id"] for each in found if each["impact"] in ("serious", "critical")]
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
        assert not seen.page.evaluate(
            """[...document.querySelectorAll("thead button")]
               .filter((each) => !each.title).map((each) => each.textContent)"""
        )
