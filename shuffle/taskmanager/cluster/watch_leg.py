"""A connection to another TaskManager that checks whether it is alive, and exchanges reports."""

import asyncio

from ....protocol.errors import SluiceError, UnexpectedMessage
from ....protocol.schema import CloseRequest, HelloAck, MemberReport, Message, Ping
from ....transport.connection import Connection
from ....transport.errors import ConnectionLost
from ....transport.loop import done_on_time
from ...names import TaskManagerPlace
from .member_reports import MemberReports


class WatchLeg:
    """The side that watches.

    Args:
        connection: The open connection.
        ack: The description of the other TaskManager in its handshake.
        reports: Sends and gets the reports; None: the other side is not a member.
    """

    def __init__(
        self, connection: Connection, ack: HelloAck, reports: MemberReports | None
    ) -> None:
        self.place = TaskManagerPlace(ack.taskmanager_id, ack.advertised_host, ack.data_port)
        self._connection = connection
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pings = 0
        self._reports = reports
        if reports is not None:
            # After the handshake, which ends when this handler is made.
            asyncio.get_running_loop().call_soon(self._subscribe, reports)

    def _subscribe(self, reports: MemberReports) -> None:
        if not self._connection.closing:
            reports.subscribe(self._connection)

    async def until_ended(self, ping_seconds: float) -> None:
        """Wait until the connection ends, or the other side does not answer a ping.

        Cancellation: safe; close the leg afterwards.
        """
        while not self._ended.done():
            before = self._connection.bytes_in
            self._pings += 1
            self._connection.send(Ping(self._pings))
            ended = await done_on_time(self._ended, ping_seconds)
            if not ended and self._connection.bytes_in == before:
                self._connection.abort(
                    ConnectionLost(
                        "The TaskManager does not answer a Ping",
                        value=self._connection.remote,
                        limit=f"{ping_seconds:g} s",
                    )
                )

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._connection.close()

    # ---- sluice.transport.connection.ConnectionHandler ------------------------------------------

    def payload_buffer(self, message: Message, length: int) -> memoryview | None:
        """Refuse the payload: no message of this leg has one.

        Raises:
            UnexpectedMessage: Always.
        """
        raise UnexpectedMessage("Payload on a leg that watches", value=type(message).__name__)

    def message_received(self, message: Message, payload_length: int) -> None:
        """Record a report of a member; close if the other side requests it."""
        if type(message) is MemberReport:
            if self._reports is not None:
                self._reports.received(message, self.place)
        elif type(message) is CloseRequest:
            self._connection.close()

    def writable(self) -> None:
        """Do nothing: pings and reports are small."""

    def connection_lost(self, error: SluiceError) -> None:
        """Record that the connection is lost."""
        if self._reports is not None:
            self._reports.unsubscribe(self._connection)
        if not self._ended.done():
            self._ended.set_result(None)
