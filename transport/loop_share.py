"""Divides the turns of an event loop among tenants.

In one turn the loop reads and writes on all connections that are ready, so a tenant with many busy
connections makes every turn long and all others wait. So the work of a tenant in a turn is limited,
all connections of its applications together (deficit round robin), and limited further while other
tenants work. Work beyond its share is subtracted from its next shares. Connections that wait for
more resume in the order of a :class:`~sluice.transport.fair_queue.FairQueue`, so that the tenant's
applications get equal parts.

uvloop reads a socket up to 32 times in a turn of the loop: hundreds of small messages, or
megabytes, while all other connections wait. :class:`ReadTurn` limits what one connection reads.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from ..protocol.framing import FrameDecoder
from ..protocol.identity import tenant_of
from .fair_queue import OWN_FLOW, FairQueue, Flow

READS_A_TURN_BYTES: Final = 256 * 1024
"""Bytes that the connections of a tenant may receive in a turn."""

SENDS_A_TURN_BYTES: Final = 1024 * 1024
"""Bytes that they may send in a turn; sending to the kernel is faster than reading."""

CONTENDED_DIVISOR: Final = 8
"""Divides the shares while several tenants work, because each waits for the turns of the others.
A lone tenant has long turns: short ones take a fifth more processor time on the pipelined path."""

CONTENDED_TURNS: Final = 1024
"""Turns for which shares stay divided after the tenants last alternated: tens of milliseconds."""

UNSHARED_READS_A_TURN_BYTES: Final = 4 * 1024 * 1024
"""For a connection that this process made, which does not share its turns."""

MESSAGE_COST_BYTES: Final = 8 * 1024
"""Bytes added for each message: 32 messages cost as much time as 256 KiB of payload."""

LONG_CONTROL_COST: Final = 32
"""Bytes counted for each byte of a long control part: its many numbers are decoded and checked one
by one, which takes 10 to 30 ns a byte."""

TURN_SECONDS: Final = 0.0003
"""Time that the work of an undivided share takes: many turns in advance are repaid in time, because
the turns of an idle loop are much shorter."""

MAX_ADVANCE_TURNS: Final = 8
"""Turns in advance that are repaid in turns."""

MIN_EXPECTED_BYTES: Final = 64 * 1024
"""Expected cost of a connection that resumes, if its last read cost less."""


NO_TENANT: Final = ""
"""Other TaskManagers and connections without a proof, which divide no share."""


class LoopTurns:
    """Counts the turns of an event loop in which shares are used, and detects several tenants."""

    __slots__ = ("_begins", "_contended_until", "_due", "_last_tenant", "number")

    def __init__(self) -> None:
        self.number = 0
        self._last_tenant = NO_TENANT
        self._contended_until = 0
        self._due = False
        self._begins: list[TurnShare] = []

    @property
    def contended(self) -> bool:
        """Whether tenants alternated within the last CONTENDED_TURNS turns."""
        return self.number < self._contended_until

    def record_work(self, tenant: str) -> None:
        """Record which tenant works; count the next turn when it begins."""
        if tenant not in (self._last_tenant, NO_TENANT):
            if self._last_tenant:
                self._contended_until = self.number + CONTENDED_TURNS
            self._last_tenant = tenant
        self.expect()

    def expect(self) -> None:
        """Count the next turn when it begins."""
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._next)

    def tell(self, share: "TurnShare") -> None:
        """Call :meth:`TurnShare.begin` in the next turn."""
        self._begins.append(share)
        self.expect()

    def _next(self) -> None:
        self._due = False
        self.number += 1
        begins, self._begins = self._begins, []
        for share in begins:
            share.begin()


class TurnShare:
    """The work that the connections of a tenant together may do in a turn.

    Args:
        turns: Turns of the event loop.
        most_bytes: Bytes per turn while no other tenant works.
        tenant: The tenant, or NO_TENANT.

    Attributes:
        waiting: Calls that wait for their turn.
    """

    __slots__ = ("_left_bytes", "_most_bytes", "_tenant", "_turn", "_turns", "waiting")

    def __init__(self, turns: LoopTurns, most_bytes: int, tenant: str = NO_TENANT) -> None:
        self._turns = turns
        self._tenant = tenant
        self._most_bytes = most_bytes
        self._left_bytes = most_bytes
        self._turn = turns.number
        self.waiting: FairQueue[tuple[Callable[[], None], int]] = FairQueue()

    @property
    def _bytes_a_turn(self) -> int:
        most_bytes = self._most_bytes
        return most_bytes // CONTENDED_DIVISOR if self._turns.contended else most_bytes

    def spend(self, cost_bytes: int) -> bool:
        """Count work that was done; return whether this turn allows more."""
        self._turns.record_work(self._tenant)
        self._catch_up()
        self._left_bytes -= cost_bytes
        return self._left_bytes > 0

    def wait(self, go_on: Callable[[], None], flow: Flow, expected_bytes: int = 0) -> None:
        """Call ``go_on`` when the share allows more, and it is the turn of its connection.

        Args:
            go_on: May spend nothing, or wait again.
            flow: The connection.
            expected_bytes: What it will spend later in the turn; limits how many resume at once.
        """
        if not self.waiting:
            self._tell()
        self.waiting.add(flow, expected_bytes or MIN_EXPECTED_BYTES, (go_on, expected_bytes))

    def begin(self) -> None:
        """Resume as many waiters as this turn allows."""
        self._catch_up()
        waiting = self.waiting
        expected_bytes = 0
        for _ in range(len(waiting)):
            if self._left_bytes <= expected_bytes or (first := waiting.take()) is None:
                break
            go_on, own_bytes = first
            go_on()
            expected_bytes += own_bytes
        if waiting:
            self._tell()

    def _tell(self) -> None:
        """Begin again in the next turn, or when the turns taken in advance are over."""
        owed_bytes = -self._left_bytes
        advance = owed_bytes // self._bytes_a_turn
        if advance > MAX_ADVANCE_TURNS:
            loop = asyncio.get_running_loop()
            seconds = owed_bytes / self._most_bytes * TURN_SECONDS
            loop.call_later(seconds, self._repaid, owed_bytes)
        else:
            self._turns.tell(self)

    def _repaid(self, owed_bytes: int) -> None:
        """Repay what was owed; what other connections have taken since is still owed."""
        left_bytes = self._left_bytes
        self._left_bytes = max(left_bytes, min(left_bytes + owed_bytes, 0))
        self._turns.tell(self)

    def _catch_up(self) -> None:
        """Add the bytes of the turns since the last work, at most those of one turn."""
        number = self._turns.number
        if number != self._turn:
            bytes_a_turn = self._bytes_a_turn
            earned = (number - self._turn) * bytes_a_turn
            self._left_bytes = min(self._left_bytes + earned, bytes_a_turn)
            self._turn = number


class LoopShare:
    """The shares of a tenant.

    Args:
        turns: Turns of the event loop.
        reads_a_turn_bytes: Bytes that its connections receive in a turn.
        tenant: The tenant, or NO_TENANT.

    Attributes:
        reads: Share for receiving.
        sends: Share for sending.
    """

    __slots__ = ("reads", "sends")

    def __init__(
        self,
        turns: LoopTurns,
        reads_a_turn_bytes: int = UNSHARED_READS_A_TURN_BYTES,
        tenant: str = NO_TENANT,
    ) -> None:
        self.reads = TurnShare(turns, reads_a_turn_bytes, tenant)
        self.sends = TurnShare(turns, SENDS_A_TURN_BYTES, tenant)


class LoopShares:
    """The shares of all tenants at a TaskManager.

    Connections that have not proven their application yet share one.

    Attributes:
        by_tenant: The share and connections of each tenant, or of one connection.
    """

    def __init__(self) -> None:
        self._turns = LoopTurns()
        self.by_tenant: dict[str | int, tuple[LoopShare, set[int]]] = {}
        self.unproven = LoopShare(self._turns, READS_A_TURN_BYTES // CONTENDED_DIVISOR)

    def __len__(self) -> int:
        return len(self.by_tenant)

    def join(self, flow: Flow) -> LoopShare:
        """Return the share of a connection's tenant, kept until the last leaves.

        A connection without an application, of another TaskManager, has a share of its own.
        """
        owner = _owner(flow)
        found = self.by_tenant.get(owner)
        if found is None:
            tenant = tenant_of(flow.application_id)
            found = LoopShare(self._turns, READS_A_TURN_BYTES, tenant), set()
            self.by_tenant[owner] = found
        found[1].add(flow.connection)
        return found[0]

    def leave(self, flow: Flow) -> None:
        """Remove a connection."""
        owner = _owner(flow)
        found = self.by_tenant.get(owner)
        if found is not None:
            found[1].discard(flow.connection)
            if not found[1]:
                del self.by_tenant[owner]


def _owner(flow: Flow) -> str | int:
    return tenant_of(flow.application_id) or flow.connection


class ReadTurn:
    """Pauses a connection when its tenant has used its share of a turn.

    Args:
        decoder: Decoder of the connection.
        shares: Shares of the tenants; None: the connection has its own share.
    """

    __slots__ = (
        "_decoder",
        "_flow",
        "_frames",
        "_long_control_bytes",
        "_shares",
        "_transport",
        "share",
    )

    def __init__(self, decoder: FrameDecoder, shares: LoopShares | None = None) -> None:
        self._decoder = decoder
        self._frames = 0
        self._long_control_bytes = 0
        self._flow = OWN_FLOW
        self._shares = shares
        self._transport: asyncio.Transport | None = None
        self.share = LoopShare(LoopTurns()) if shares is None else shares.unproven
        """The tenant's share, after the connection joined it."""

    def join(self, application_id: str, connection: int) -> LoopShare:
        """Join the share of an application's tenant; one of several applications has its own."""
        if self._shares is not None:
            self._flow = Flow(application_id, connection)
            self.share = self._shares.join(self._flow)
        return self.share

    def leave(self) -> None:
        """Leave the share: the connection is closed. Idempotent."""
        self._transport = None
        shares, self._shares = self._shares, None
        if shares is not None:
            shares.leave(self._flow)

    def after_read(self, transport: asyncio.Transport | None, nbytes: int) -> None:
        """Count a read; end the turn if the share is used up."""
        decoder = self._decoder
        frames = decoder.frames
        cost = nbytes + (frames - self._frames) * MESSAGE_COST_BYTES
        self._frames = frames
        if decoder.long_control_bytes != self._long_control_bytes:
            long_bytes = decoder.long_control_bytes - self._long_control_bytes
            self._long_control_bytes += long_bytes
            cost += long_bytes * LONG_CONTROL_COST
        if self.share.reads.spend(cost) or transport is None or transport.is_closing():
            return
        transport.pause_reading()
        if self._transport is None:
            self._transport = transport
            self.share.reads.wait(self._read_on, self._flow, max(cost, MIN_EXPECTED_BYTES))

    def _read_on(self) -> None:
        transport, self._transport = self._transport, None
        # A connection that waits for memory resumes when there is some.
        if transport is not None and not transport.is_closing() and not self._decoder.blocked:
            transport.resume_reading()
