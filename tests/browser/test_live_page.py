"""The status page of a real TaskManager while map outputs are written and read."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from sluice import HashSelector, ResultPartitionType, ShuffleClient, StringSerializer
from sluice.shuffle.partition.blocks import BlockCodec
from sluice.shuffle.taskmanager.status.status import TaskManagerStatus
from tests.support.daemon import Daemon

if TYPE_CHECKING:
    from collections.abc import Iterator

RECORD = "x" * 1000
RECORDS = 8000
"""Far more bytes than a gate and its client have buffers."""

TIMEOUT_SECONDS = 60
COMPARE = """
() => {
  const status = window.lastStatus;
  const all = (selector) => [...document.querySelectorAll(selector)];
  const column = (section, head) => {
    const at = all(`#${section} thead th`).map((each) => each.textContent).indexOf(head);
    const cells = all(`#${section} tbody tr`).map((row) => row.children[at]);
    return cells.map((cell) => Number(cell.querySelector("data").value));
  };
  const of = (list, field) => list.map((each) => each[field]);
  const total = (numbers) => numbers.reduce((a, b) => a + b, 0);
  const sorted = (numbers) => [...numbers].sort((a, b) => a - b);
  const same = (a, b) => JSON.stringify(sorted(a)) === JSON.stringify(sorted(b));
  return [
    same(column("shuffles", "Stored"), of(status.partitions, "stored_bytes")),
    same(column("shuffles", "Map outputs"), of(status.partitions, "committed_map_outputs")),
    same(column("storage", "Used"), of(status.storage, "used_bytes")),
    same(column("gates", "Exclusive"), of(status.gates, "exclusive_used")),
    same(column("gates", "In all"), of(status.gates, "back_pressured_seconds")),
    same(column("applications", "Stored"), of(status.applications, "stored_bytes")),
    total(column("peers", "Received")) === total(of(status.connections, "bytes_in")),
  ];
}
"""

COMPARE_OUTPUTS = """
async () => {
  const table = document.querySelector("table[aria-label='Map outputs of the shuffle']");
  const answer = await (await fetch("api/v1/shuffles/words/1?limit=1000")).json();
  const stored = new Map(answer.outputs.map((each) => [each.map_attempt_id, each]));
  return [...table.querySelectorAll(":scope > tbody > tr:not(.detail)")].map((row) => {
    const numbers = [...row.querySelectorAll("data")].map((each) => Number(each.value));
    const [attempt, regions, length] = numbers;
    const { regions: all, length_bytes } = stored.get(attempt);
    return all.length === regions && length_bytes === length && length > 0;
  });
}
"""


class Exchange:
    """A program that writes and reads map outputs in a thread, until a reader stops to read."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._loop = asyncio.new_event_loop()
        self._sticks = asyncio.Event()
        self.stuck = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Exchange:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(TIMEOUT_SECONDS)
        assert not self._thread.is_alive()
        self._loop.close()

    def stick(self) -> None:
        """Open a gate that is not read, while there is much to read."""
        self._loop.call_soon_threadsafe(self._sticks.set)
        assert self.stuck.wait(TIMEOUT_SECONDS)

    def _run(self) -> None:
        self._task = self._loop.create_task(self._main())
        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._task)

    async def _main(self) -> None:
        serializer = StringSerializer()
        async with await ShuffleClient.connect(self._endpoint, "words") as client:
            attempt = 0
            while True:
                async with client.open_result_partition(
                    1,
                    attempt,
                    2,
                    partition_type=ResultPartitionType.BLOCKING,
                    codec=BlockCodec.NONE,
                ) as partition:
                    writer = partition.record_writer(serializer, HashSelector(str.encode))
                    for number in range(RECORDS):
                        if (pending := writer.emit(f"{number} {RECORD}")) is not None:
                            await pending
                attempt += 1
                if self._sticks.is_set():
                    async with client.open_gate([partition.location], 1):
                        self.stuck.set()
                        await asyncio.Event().wait()  # until it is cancelled
                async with client.open_gate([partition.location], 0) as gate:
                    async for _ in gate.records(serializer):
                        pass


@pytest.fixture
def daemon(tmp_path) -> Iterator[Daemon]:
    with Daemon(tmp_path, memory_tier_bytes="256 MiB") as daemon:
        yield daemon


def test_numbers_are_those_of_the_status_during_an_exchange(daemon, visit):
    with Exchange(daemon.endpoint), visit(daemon.url) as seen:
        expect(seen.page.locator("#shuffles tbody tr")).to_have_count(1)
        for _ in range(5):
            seen.wait_for_next_status()
            assert all(seen.page.evaluate(COMPARE))


def test_map_outputs_are_those_of_the_store_during_an_exchange(daemon, visit):
    with Exchange(daemon.endpoint), visit(daemon.url) as seen:
        opened = seen.page.locator("#shuffles button.open")
        opened.click()
        reload = seen.page.get_by_role("button", name="Reload")
        rows = seen.page.get_by_role("table", name="Map outputs of the shuffle").locator("td")
        for _ in range(3):
            reload.click()
            expect(rows.first).to_be_visible()
            same = seen.page.evaluate(COMPARE_OUTPUTS)
            assert same
            assert all(same)


def test_a_stuck_reader_is_named_at_once(daemon, visit):
    with Exchange(daemon.endpoint) as exchange, visit(daemon.url) as seen:
        expect(seen.page.locator("#shuffles tbody tr")).to_have_count(1)
        exchange.stick()
        events = seen.page.evaluate("window.events")
        row = seen.page.locator("#gates tbody tr").filter(has_text="its reader does not read")
        expect(row).to_have_count(1)
        assert "words" in row.inner_text()
        if "waits" in TaskManagerStatus.__struct_fields__:
            expect(seen.page.locator("#waits .tree")).to_contain_text("waits for reader")
        # The buffers of the gate fill up before its reader holds up anything: one event more.
        assert seen.page.evaluate("window.events") - events <= 3
