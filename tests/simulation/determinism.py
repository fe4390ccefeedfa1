"""Replaces what a seed does not decide: clocks, random numbers, hashes by address, threads.

Import it, and call :func:`install`, before any module of the product. Without a running simulation
the clocks are the real ones.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import itertools
import os
import pkgutil
import random
import secrets
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from tests.simulation.loop import SimulatedFuture, SimulatedTask
from tests.simulation.strands import SimulatedEvent, SimulatedExecutor, SimulatedThreading

if TYPE_CHECKING:
    from tests.simulation.loop import SimulatedLoop

_PRODUCT: Final = ("sluice.protocol", "sluice.transport", "sluice.shuffle")
_NOT_SIMULATED: Final = ("dataflow", ".http", ".processes", ".process.")
_WITHOUT_HASHES: Final = ("tests.simulation.loop", "tests.simulation.strands")
"""Modules whose objects are in no set, and are many."""

_loops: list[SimulatedLoop] = []
_SERIAL: Final = "serial of the simulation"
_serials = itertools.count(1)
_serial_of: dict[int, int] = {}


def _clock(name: str) -> None:
    real = getattr(time, name)

    def clock() -> float:
        return _loops[0].time() if _loops else real()

    setattr(time, name, clock)


def install() -> None:
    """Replace the clocks of this interpreter. They stay real until a simulation runs."""
    for name in ("monotonic", "perf_counter", "thread_time", "process_time"):
        _clock(name)
    real = time.time
    time.time = lambda: _loops[0].wall_clock() if _loops else real()


def load_product() -> None:
    """Import the modules of a simulation, and number the objects of their classes.

    Call it after :func:`install`, so that no module keeps a real clock.
    """
    for name in _PRODUCT:
        package = importlib.import_module(name)
        for found in pkgutil.walk_packages(package.__path__, name + "."):
            if not any(part in found.name for part in _NOT_SIMULATED):
                importlib.import_module(found.name)
    importlib.import_module("tests.simulation.world")
    for name, module in list(sys.modules.items()):
        if name.startswith(("sluice.", "tests.")) and name not in _WITHOUT_HASHES:
            for each in list(vars(module).values()):
                if isinstance(each, type) and each.__module__ == name:
                    _number(each)


def begin(loop: SimulatedLoop, seed: int) -> None:
    """Take everything else from the seed, in this process, until it ends."""
    gc.disable()
    gc.freeze()
    random.seed(seed)
    numbers = random.Random(seed ^ 0x5EC2E75)

    def token_bytes(count: int | None = None) -> bytes:
        return numbers.randbytes(32 if count is None else count)

    source: Any = secrets
    os.urandom = numbers.randbytes
    source.token_bytes = token_bytes
    source.token_hex = lambda count=None: token_bytes(count).hex()
    source.randbits = numbers.getrandbits
    asyncio.Task = asyncio.tasks.Task = SimulatedTask  # type: ignore[misc]
    asyncio.Future = asyncio.futures.Future = SimulatedFuture  # type: ignore[misc]
    SimulatedExecutor.strands = SimulatedEvent.strands = loop.strands
    for name in ("files.io_threads", "journal.recovery"):
        module: Any = sys.modules[f"sluice.shuffle.taskmanager.store.{name}"]
        module.ThreadPoolExecutor = SimulatedExecutor
    starts: Any = sys.modules["sluice.shuffle.taskmanager.store.journal.start_calls"]
    starts.threading = SimulatedThreading
    # Paths have no other owners here, and a check of each part takes longer than a probe.
    probes: Any = sys.modules["sluice.shuffle.taskmanager.store.health.directory_probe"]
    probes.require_private = lambda _: None
    for name in ("journal_files", "start_journals"):
        journals: Any = sys.modules[f"sluice.shuffle.taskmanager.store.journal.{name}"]
        journals.COMPACTION_FLOOR_BYTES = 2048  # so that those of a simulation are rewritten
    descriptors: Any = sys.modules["sluice.transport.descriptors"]
    descriptors.free_descriptors = lambda: 4096
    _loops[:] = [loop]


def _number(kind: Any) -> None:
    """Give the objects of a class hashes that do not depend on their addresses.

    Objects with a ``__dict__`` are numbered when they are hashed first, others when they are made:
    another object may get their address.
    """
    if kind.__hash__ is object.__hash__ and kind.__dictoffset__:
        kind.__hash__ = _hash_of_named
        return
    if kind.__hash__ is not object.__hash__ or kind.__new__ is not object.__new__:
        if kind.__hash__ is object.__hash__ and kind.__new__ is _new:
            kind.__hash__ = _hash
        return
    try:
        kind.__new__ = _new
        kind.__hash__ = _hash
    except TypeError:  # a compiled class
        return


def _hash_of_named(self: object) -> int:
    names = self.__dict__
    serial: int | None = names.get(_SERIAL)
    if serial is None:
        serial = names[_SERIAL] = next(_serials)
    return serial


def _new(kind: Any, *_: object, **__: object) -> object:
    made: object = object.__new__(kind)
    _serial_of[id(made)] = next(_serials)
    return made


def _hash(self: object) -> int:
    serial = _serial_of.get(id(self))
    if serial is None:
        serial = _serial_of[id(self)] = next(_serials)
    return serial
