"""The status page in a browser, on statuses that a test makes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from msgspec import structs
from playwright.sync_api import expect

from sluice.protocol.access_token import make_access_token
from sluice.protocol.identity import ClusterSecrets
from sluice.shuffle.taskmanager.bounds.accounts import ApplicationStatus
from sluice.shuffle.taskmanager.status.status import TaskManagerStatus
from tests.browser.rig import PREFIX, prefix_proxy
from tests.support.browser import WIDTHS
from tests.support.shown_status import moving, port_showing
from tests.support.statuses import busy_status, with_story
from tools.docs.sample_status import EMPTY_STATUS, STATUS

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Page

    from tests.support.browser import Visit

SECRET = bytes(range(32))
SERIOUS = {"serious", "critical"}
HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
STUCK = "its reader does not read"


def url_of(port: int, path: str = "/") -> str:
    return f"http://127.0.0.1:{port}{path}"


def wait_for_numbers(page: Page) -> None:
    expect(page.locator("#content")).to_be_visible()


def serious(page: Page) -> list[str]:
    """Return what axe-core finds that keeps people from using a page."""
    found: list[dict[str, Any]] = Axe().run(page).response["violations"]
    return [
        f"{each['id']}: {each['help']}: {[node['html'] for node in each['nodes'][:3]]}"
        for each in found
        if each["impact"] in SERIOUS
    ]


def party(name: str) -> dict[str, str]:
    kind = name.split()[0]
    return {"kind": kind, "name": name, "application_id": "app-1" if kind == "gate" else ""}


def wait(waiter: str, resource: str, seconds: float) -> dict[str, object]:
    return {
        "waiter": party(waiter),
        "resource": party(resource),
        "seconds": seconds,
        "text": f"The {waiter} cannot go on",
        "remedy": f"Look at the {resource}",
    }


def waiting(waits: list[dict[str, object]]) -> Callable[[], TaskManagerStatus]:
    return lambda: with_story(busy_status(1.0), waits)


def test_numbers_are_those_of_the_status(visit):
    with port_showing(lambda: STATUS) as port, visit(url_of(port)) as seen:
        wait_for_numbers(seen.page)
        answer = seen.page.request.get(url_of(port, "/api/v1/status"))
        status = TaskManagerStatus.from_json(answer.json())
        check_numbers(seen, status)
        expect(seen.page.locator("#name")).to_have_text(status.taskmanager_id)
        expect(seen.page.locator("#state")).to_have_text(status.state)
        shown = seen.page.locator("#warnings li").all_inner_texts()
        assert [each.splitlines()[-1] for each in shown] == [w.remedy for w in status.warnings]
        assert all(w.text in text for w, text in zip(status.warnings, shown, strict=True))


def check_numbers(seen: Visit, status: TaskManagerStatus) -> None:
    assert by(seen.table("storage"), "Directory", "Used", "Free", "Regions") == {
        each.directory: [each.used_bytes, each.free_bytes, each.extents] for each in status.storage
    }
    assert by(seen.table("applications"), "Application", "Connections", "Stored") == {
        each.application_id: [each.connections, each.stored_bytes] for each in status.applications
    }
    columns: tuple[str, ...] = ("Map outputs", "Open", "Regions", "Stored")
    assert by(seen.table("shuffles"), "Application", *columns) == {
        each.application_id: [
            each.committed_map_outputs,
            each.open_map_outputs,
            each.regions,
            each.stored_bytes,
        ]
        for each in status.partitions
    }
    columns = ("Shuffle", "Exclusive", "Floating", "Credit", "Backlog", "Queued", "Channels")
    assert by(seen.table("gates"), "Gate", *columns) == {
        str(each.gate_id): [
            each.shuffle_id,
            each.exclusive_used,
            each.floating_used,
            sum(channel.available_credit for channel in each.channels),
            sum(channel.backlog_buffers for channel in each.channels),
            sum(channel.queued_buffers for channel in each.channels),
            len(each.channels),
        ]
        for each in status.gates
    }
    columns = ("Lent", "Required", "Overdraft", "Full channels", "Waiting")
    assert by(seen.table("pools"), "Pool", *columns) == {
        each.name: [
            each.lent_segments,
            each.required_segments,
            each.overdraft_segments,
            each.full_channels,
            each.waiting_listeners,
        ]
        for each in status.pools
    }
    columns = ("Channels", "Received", "Sent", "Unsent")
    assert by(seen.table("peers"), "Remote", *columns) == {
        each.remote: [each.channels, each.bytes_in, each.bytes_out, each.write_buffer_bytes]
        for each in status.connections
    }


def by(rows: list[dict[str, str]], key: str, *columns: str) -> dict[str, list[int]]:
    return {row[key].strip(): [int(row[column]) for column in columns] for row in rows}


def test_channels_and_holdings_open_with_the_keyboard(visit):
    with port_showing(lambda: STATUS) as port, visit(url_of(port)) as seen:
        wait_for_numbers(seen.page)
        for section in ("gates", "applications"):
            button = seen.page.locator(f"#{section} button.open").first
            expect(button).to_have_attribute("aria-expanded", "false")
            button.focus()
            seen.page.keyboard.press("Enter")
            expect(button).to_have_attribute("aria-expanded", "true")
        (gate,) = STATUS.gates
        rows = seen.page.locator("#gates tr.detail tbody tr")
        expect(rows).to_have_count(len(gate.channels))
        expect(rows.first).to_contain_text("node-3:7337")  # it has the longest backlog
        expect(seen.page.locator("#applications tr.detail tbody tr").first).to_contain_text(
            "disk tier"
        )
        seen.page.keyboard.press("Enter")
        expect(seen.page.locator("#applications tr.detail")).to_have_count(0)


def test_a_gate_whose_reader_does_not_read_is_first_and_named(visit):
    with port_showing(moving(gates=40)) as port, visit(url_of(port)) as seen:
        expect(seen.page.locator("#gates tbody tr").first).to_contain_text(STUCK)
        # It takes the difference of two snapshots, and no third one.
        assert seen.page.evaluate("window.events") <= 2


def test_a_gate_keeps_its_numbers_when_another_of_its_number_is_closed(visit):
    gate = structs.replace(STATUS.gates[0], back_pressured_seconds=0.0, idle_seconds=0.0)
    first = structs.replace(gate, connection="40.1")
    second = structs.replace(gate, connection="40.2", back_pressured_seconds=50.0)
    shown = [structs.replace(STATUS, uptime_seconds=100.0, gates=(first, second))]
    with port_showing(lambda: shown[-1]) as port, visit(url_of(port)) as seen:
        rows = seen.page.locator("#gates > .scroll > table > tbody > tr")
        expect(rows).to_have_count(2)
        shown.append(structs.replace(STATUS, uptime_seconds=102.0, gates=(second,)))
        expect(rows).to_have_count(1)
        expect(rows).not_to_contain_text(STUCK)
        (row,) = seen.table("gates")
        assert float(row["Back-pressured"]) == 0.0


def test_waits_are_a_tree_from_what_waits_to_what_holds_it_up(visit):
    waits = [
        wait("gate 7", "reader 10.0.0.3:5000", 61.0),
        wait("writer 3", "pool network memory", 4.0),
        wait("pool network memory", "gate 7", 4.0),
        wait("read 1", "read 2", 1.0),
        wait("read 2", "read 1", 1.0),
    ]
    with port_showing(waiting(waits)) as port, visit(url_of(port)) as seen:
        tree = seen.page.locator("#waits > .tree")
        expect(tree.locator("> li")).to_have_count(2)
        chain = tree.locator("> li").first
        expect(chain.locator("> b")).to_have_text("writer 3 waits for pool network memory")
        below = chain.locator("> ul > li > ul > li")
        expect(below.locator("> b")).to_have_text("gate 7 (app-1) waits for reader 10.0.0.3:5000")
        expect(below).to_contain_text("Look at the reader 10.0.0.3:5000")
        expect(below.locator("> .seconds")).to_have_text("61.0 s")


def test_two_hundred_waits_for_the_same_memory_stay_readable(visit):
    waits = [wait(f"writer {each}", "pool network memory", 200.0 - each) for each in range(150)]
    waits += [wait("pool network memory", f"application {each}", 9.0) for each in range(50)]
    with port_showing(waiting(waits)) as port, visit(url_of(port)) as seen:
        expect(seen.page.locator("#waits > .tree > li")).to_have_count(30)
        expect(seen.page.locator("#waits > .tree li")).to_have_count(30 + 50)
        expect(seen.page.locator("#waits > .more")).to_have_text(
            "120 more are not shown: shorter ones, and those whose time is not known."
        )


def test_an_idle_taskmanager_has_an_empty_page(visit):
    with port_showing(lambda: EMPTY_STATUS) as port, visit(url_of(port)) as seen:
        wait_for_numbers(seen.page)
        for section in ("gates", "applications", "shuffles", "pools", "peers"):
            expect(seen.page.locator(f"#{section} .empty")).to_be_visible()
        expect(seen.page.locator("#waits .empty")).to_have_text("Nothing waits.")


def test_hostile_names_are_text(visit):
    status = structs.replace(
        STATUS,
        applications=(ApplicationStatus(HOSTILE, 1, None, 5, ()),),
        gates=(structs.replace(STATUS.gates[0], application_id=HOSTILE),),
    )
    with port_showing(lambda: status) as port, visit(url_of(port)) as seen:
        wait_for_numbers(seen.page)
        expect(seen.page.locator("#applications tbody th")).to_contain_text(HOSTILE)
        assert not seen.page.evaluate("window.hacked")
        assert not seen.page.locator("img").count()


def test_a_thousand_gates_show_the_worst_and_how_many_more_there_are(visit):
    source = moving(gates=1000, channels=4, applications=50)
    with port_showing(source) as port, visit(url_of(port)) as seen:
        expect(seen.page.locator("#gates tbody tr").first).to_contain_text(STUCK)
        expect(seen.page.locator("#gates tbody tr")).to_have_count(20)
        expect(seen.page.locator("#gates .more")).to_contain_text("980 more gates")
        expect(seen.page.locator("#applications .more")).to_contain_text("30 more applications")
        seen.page.locator("#gates .more button").click()
        expect(seen.page.locator("#gates tbody tr")).to_have_count(120)


def test_the_filter_keeps_the_rows_of_an_application(visit):
    with (
        port_showing(moving(gates=30, applications=3)) as port,
        visit(url_of(port, "/#application=0002")) as seen,
    ):
        expect(seen.page.locator("#applications tbody tr")).to_have_count(1)
        expect(seen.page.locator("#gates tbody tr")).to_have_count(10)
        seen.page.locator("#filter-text").fill("")
        expect(seen.page.locator("#applications tbody tr")).to_have_count(3)


def test_pools_of_one_name_are_told_apart_by_application(visit):
    pool = structs.replace(STATUS.pools[0], name="map output 7 of shuffle 1")
    pools = tuple(structs.replace(pool, application_id=each) for each in ("app-1", "app-2"))
    status = structs.replace(STATUS, pools=pools)
    with port_showing(lambda: status) as port, visit(url_of(port)) as seen:
        wait_for_numbers(seen.page)
        assert [(row["Pool"], row["Application"]) for row in seen.table("pools")] == [
            ("map output 7 of shuffle 1", "app-1"),
            ("map output 7 of shuffle 1", "app-2"),
        ]
        seen.page.locator("#filter-text").fill("app-2")
        expect(seen.page.locator("#pools tbody tr")).to_have_count(1)
        expect(seen.page.locator("#pools tbody tr")).to_contain_text("app-2")


def test_a_column_sorts_its_table(visit):
    with port_showing(moving(applications=5)) as port, visit(url_of(port)) as seen:
        wait_for_numbers(seen.page)
        head = seen.page.locator("#shuffles thead th").nth(1)
        for direction in ("descending", "ascending"):
            head.locator("button").click()
            expect(head).to_have_attribute("aria-sort", direction)
            numbers = [int(row["Shuffle"]) for row in seen.table("shuffles")]
            assert numbers == sorted(numbers, reverse=direction == "descending")


def test_it_works_behind_a_path_prefix(visit):
    with (
        port_showing(moving()) as port,
        prefix_proxy(port) as proxy,
        visit(url_of(proxy, f"{PREFIX}/")) as seen,
    ):
        wait_for_numbers(seen.page)
        seen.page.get_by_role("link", name="Cluster").click()
        expect(seen.page.locator("#members tbody tr")).to_have_count(1)
        seen.page.get_by_role("link", name="This TaskManager").click()
        expect(seen.page.locator("#gates tbody tr")).to_have_count(12)


def test_with_a_secret_it_asks_for_a_token_and_keeps_it_in_the_tab(visit):
    token = make_access_token(SECRET, "status", 0).to_text()
    with (
        port_showing(moving(), secrets=ClusterSecrets([SECRET])) as port,
        visit(url_of(port), expected_errors="401") as seen,
    ):
        page = seen.page
        expect(page.locator("#token")).to_be_visible()
        expect(page.locator("#token-text")).to_be_focused()
        assert page.locator("#content").is_hidden()
        assert not page.locator("#token-problem").inner_text()
        page.keyboard.type("sluice-access-1-wrong")
        page.keyboard.press("Enter")
        expect(page.locator("#token-problem")).not_to_be_empty()
        page.locator("#token-text").fill(token)
        page.keyboard.press("Enter")
        wait_for_numbers(page)
        assert page.locator("#token").is_hidden()
        page.reload()
        wait_for_numbers(page)
        page.get_by_role("link", name="Cluster").click()
        expect(page.locator("#members tbody tr")).to_have_count(1)
        assert not [each for each in seen.requests if token in each]


def test_a_request_for_another_host_is_explained(visit):
    with port_showing(moving()) as port, visit("about:blank") as seen:
        seen.page.route(
            "**/api/v1/events",
            lambda route: route.fulfill(status=403, json={"error": "The request names another"}),
        )
        seen.errors.clear()
        seen.page.goto(url_of(port))
        expect(seen.page.locator("#problem")).to_contain_text("The request names another")
        seen.errors.clear()  # the browser reports each answer of 403
        seen.requests[:] = ["about:blank"]


def test_while_too_many_streams_are_open_it_reads_the_status(visit):
    with port_showing(moving()) as port, visit("about:blank", expected_errors="503") as seen:
        seen.page.route(
            "**/api/v1/events",
            lambda route: route.fulfill(status=503, json={"error": "16 event streams are open"}),
        )
        seen.page.goto(url_of(port))
        wait_for_numbers(seen.page)
        expect(seen.page.locator("#gates tbody tr").first).to_contain_text(STUCK)
        seen.requests[:] = ["about:blank"]


def test_a_hidden_page_asks_for_nothing(visit):
    hide = """(hidden) => {
        Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    with port_showing(moving()) as port, visit(url_of(port)) as seen:
        wait_for_numbers(seen.page)
        with seen.page.expect_event("requestfailed") as ended:  # the stream is closed
            seen.page.evaluate(hide, True)
        assert ended.value.url.endswith("/api/v1/events")
        expect(seen.page.locator("#live")).to_have_text("Paused")
        seen.page.evaluate(hide, False)
        expect(seen.page.locator("#live")).to_have_text("Live")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_keeps_people_from_using_it(visit, scheme):
    with (
        port_showing(lambda: STATUS) as port,
        visit(url_of(port), color_scheme=scheme, reduced_motion="reduce") as seen,
    ):
        wait_for_numbers(seen.page)
        for section in ("gates", "applications"):
            seen.page.locator(f"#{section} button.open").first.click()
        assert not serious(seen.page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_keeps_people_from_giving_a_token(visit, scheme):
    with (
        port_showing(lambda: STATUS, secrets=ClusterSecrets([SECRET])) as port,
        visit(url_of(port), expected_errors="401", color_scheme=scheme) as seen,
    ):
        expect(seen.page.locator("#token")).to_be_visible()
        assert not serious(seen.page)


@pytest.mark.parametrize("width", [*WIDTHS.values(), 1280 // 4])
def test_the_page_never_scrolls_sideways(visit, width):
    """A width of 320 is that of a window of 1280 at 400 % zoom."""
    with (
        port_showing(lambda: STATUS) as port,
        visit(url_of(port), viewport={"width": width, "height": 800}) as seen,
    ):
        wait_for_numbers(seen.page)
        seen.page.locator("#gates button.open").first.click()
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
        region = seen.page.locator("#gates > .scroll")
        expect(region).to_have_attribute("tabindex", "0")


def test_every_number_has_a_meaning(visit):
    with port_showing(lambda: STATUS) as port, visit(url_of(port)) as seen:
        wait_for_numbers(seen.page)
        assert not seen.page.evaluate(
            """[...document.querySelectorAll("thead button, dl.facts > div, figure")]
               .filter((each) => !each.title).map((each) => each.textContent)"""
        )
