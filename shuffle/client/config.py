"""Settings of a client, and the endpoint of its TaskManager as users write it."""

from pydantic import Field

from ...transport.config import TransportConfig
from ...transport.settings import Count, Seconds, Settings


class ClientConfig(Settings):
    """Memory, deadlines and the transport of one client.

    The segment size is the TaskManager's.
    """

    network_segments: Count = Field(256, ge=2, le=1 << 24)
    """Segments of the client's own pool, shared by its partitions and gates; 8 MiB by default."""

    exclusive_buffers_per_channel: Count = Field(2, ge=1, le=1024)
    """Segments that each channel of a gate owns while it is open; a bounded partition may have as
    many for each subpartition."""

    floating_buffers_per_gate: Count = Field(8, ge=0, le=65536)
    """Segments that the channels of a gate share; channels with a backlog get them. A bounded
    partition may have as many beside those of its subpartitions."""

    max_buffers_per_channel: Count = Field(10, ge=1, le=1 << 24)
    """Segments that may wait for one subpartition before its partition becomes unavailable."""

    max_overdraft_buffers: Count = Field(5, ge=0, le=65536)
    """Segments beyond its share that a partition may take to finish a record it has begun."""

    buffer_timeout_seconds: float = Field(0.1, ge=-1, le=3600)
    """Time after which a buffer that is not full is sent; 0: after every call, -1: only full
    buffers are sent."""

    answer_timeout_seconds: Seconds = Field(60, gt=0)
    """Time in which the TaskManager must answer, where the answer waits for no reader."""

    silence_timeout_seconds: Seconds = Field(30, gt=0)
    """Longest silence of a TaskManager that is waited for. It is pinged after half of it; without
    an answer its connections are lost, and the next endpoint is used."""

    transport: TransportConfig = Field(default_factory=TransportConfig)
    """Deadlines, watermarks, TLS."""
