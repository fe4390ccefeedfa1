"""The region area of one producer connection."""

import asyncio
import logging

from protocol.errors import UnexpectedMessage
from protocol.messages import AttachRegionArea, RegionAreaAttached
from shuffle.errors import RegionMismatch
from shuffle.storage.region_area import RegionArea, RegionAreas
from transport.connection import Connection

_log = logging.getLogger(__name__)


class RegionAreaLeg:
    """Attaches region areas to a connection, one at a time.

    Args:
        connection: The connection to the producer.
        areas: Those of the TaskManager.
    """

    def __init__(self, connection: Connection, areas: RegionAreas) -> None:
        self._connection = connection
        self._areas = areas
        self._area: RegionArea | None = None
        self._creating: asyncio.Task[None] | None = None

    @property
    def area(self) -> RegionArea:
        """What is attached.

        Raises:
            RegionMismatch: Nothing is.
        """
        if self._area is None:
            raise RegionMismatch("SharedRegion on a connection without a region area")
        return self._area

    def attach(self, message: AttachRegionArea) -> None:
        """Attach an area in place of the one there is, and answer.

        Raises:
            UnexpectedMessage: The answer to the last one is not sent yet.
        """
        if self._creating is not None:
            raise UnexpectedMessage("AttachRegionArea before the answer to the one before", value=2)
        self.detach()
        application_id = self._connection.application_id
        if message.token or not message.size_bytes:
            self._attached(self._areas.find(application_id, message.token))
        else:
            self._creating = asyncio.get_running_loop().create_task(
                self._create(application_id, message.size_bytes)
            )

    def detach(self) -> None:
        """Give up what is attached, and what is being made. Idempotent."""
        if self._creating is not None:
            self._creating.cancel()
            self._creating = None
        area, self._area = self._area, None
        if area is not None:
            area.release()

    async def _create(self, application_id: str, size_bytes: int) -> None:
        area: RegionArea | None = None
        try:
            area = await self._areas.create(application_id, size_bytes)
        except Exception:  # noqa: BLE001
            # A bug of ours: the producer can do without an area, but not without an answer.
            _log.exception("internal error while making a region area")
        self._creating = None
        self._attached(area)

    def _attached(self, area: RegionArea | None) -> None:
        self._area = area
        self._connection.send(
            RegionAreaAttached("", "", 0)
            if area is None
            else RegionAreaAttached(area.token, str(area.path), area.size_bytes)
        )
