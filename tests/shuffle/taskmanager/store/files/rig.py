"""Calls in threads that end when the test says so."""

import asyncio
import threading

from sluice.transport.fair_queue import Flow


class Lent:
    """Something that a call uses."""

    def __init__(self):
        self.events = []

    def retain(self):
        self.events.append("retained")

    def release(self):
        self.events.append("released")


class HangingCall:
    """A call that its thread does not end before the test says so."""

    def __init__(self, threads, size_bytes=1):
        self.lent = Lent()
        self._entered, self._proceed = threading.Event(), threading.Event()
        call = threads.run_for(Flow("app", 0), size_bytes, self._wait, [self.lent])
        self.task = asyncio.ensure_future(call)

    def _wait(self):
        self._entered.set()
        assert self._proceed.wait(20)

    async def begun(self):
        assert await asyncio.to_thread(self._entered.wait, 20)
        return self

    async def end(self, threads):
        self._proceed.set()
        ended = threading.Event()
        threads.when_idle(ended.set)
        assert await asyncio.to_thread(ended.wait, 20)
        await asyncio.sleep(0)  # the loop is told before the thread is idle
