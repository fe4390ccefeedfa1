"""The page of the cluster in a browser: members that answer, and one that does not."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.support.browser import WIDTHS
from tests.support.free_ports import free_ports
from tests.support.shown_status import moving, port_showing
from tests.support.statuses import busy_status


def url_of(port: int, path: str = "/cluster") -> str:
    return f"http://127.0.0.1:{port}{path}"


def test_all_members_are_rows_and_a_silent_one_says_why(visit):
    silent = url_of(free_ports(1), "")
    with (
        port_showing(lambda: busy_status(5.0, number=2, gates=30)) as second,
        port_showing(moving(number=1), urls=(url_of(second, ""), silent)) as port,
        visit(url_of(port)) as seen,
    ):
        rows = seen.page.locator("#members tbody tr")
        expect(rows).to_have_count(3)
        expect(seen.page.locator("#state")).to_have_text("2 of 3 answer")
        expect(rows.first).to_contain_text(silent)  # what needs help is first
        expect(rows.first).to_contain_text("cannot connect: ")
        table = {row["Member"]: row for row in seen.table("members")}
        assert table["tm-2"]["Gates"] == "30"
        status = busy_status(5.0, number=2, gates=30)
        disks = sum(tier.used_bytes for tier in status.storage if tier.tier == "disk")
        assert table["tm-2"]["Disk"] == str(disks)
        expect(seen.page.locator("#warnings li").first).to_contain_text("has not answered")
        link = rows.filter(has_text="tm-2").get_by_role("link")
        expect(link).to_have_attribute("href", f"{url_of(second, '')}/")
        expect(link).to_have_attribute("rel", "noreferrer noopener")


def test_rates_come_with_the_second_answer(visit):
    with port_showing(moving(number=1)) as port, visit(url_of(port)) as seen:
        expect(seen.page.locator("#facts")).to_contain_text("MiB/s")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS.values())
def test_nothing_keeps_people_from_using_it(visit, scheme, width):
    viewport = {"width": width, "height": 800}
    with (
        port_showing(moving(), urls=(url_of(free_ports(1), ""),)) as port,
        visit(url_of(port), color_scheme=scheme, viewport=viewport) as seen,
    ):
        expect(seen.page.locator("#members tbody tr")).to_have_count(2)
        found = Axe().run(seen.page).response["violations"]
        assert not [each["id"] for each in found if each["impact"] in ("serious", "critical")]
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
