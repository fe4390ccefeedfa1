"""The parts of a TaskManager that its embedded tasks use."""

from typing import NamedTuple

from ....transport.access import Access
from ....transport.address import Address
from ...counters import Counters
from ..drivers.applications import Applications
from ..ingest.incoming_output import ProducerServices
from ..serve.taskmanager_channel_opener import GateServices


class EmbeddedServices(NamedTuple):
    """The parts of a TaskManager that its embedded tasks use.

    Attributes:
        address: Address at which other TaskManagers reach this one.
        access: Who may use it.
        applications: The applications that are connected.
        producers: What writers use.
        gates: What gates use.
    """

    address: Address
    access: Access
    applications: Applications
    producers: ProducerServices
    gates: GateServices

    @property
    def counters(self) -> Counters:
        """The TaskManager's counters."""
        return self.producers.counters
