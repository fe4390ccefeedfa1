"""Section `[memory]`: the pool of network segments and how it is shared."""

from __future__ import annotations

from pydantic import Field, model_validator

from ....transport.settings import Bytes, Count, Seconds, Settings


class NetworkMemoryConfig(Settings):
    """The pool of network segments and how it is shared."""

    segment_size_bytes: Bytes = Field(32 * 1024, ge=1024, le=1024 * 1024)
    """Size of a network buffer. The same on every TaskManager of a cluster."""

    network_segments: Count = Field(2048, ge=1, le=1 << 24)
    """Segments in the pool, allocated once at start."""

    exclusive_buffers_per_channel: Count = Field(2, ge=0, le=1024)
    """Segments that each remote input channel owns while it is open. 0: a channel has memory only
    while it has data."""

    floating_buffers_per_gate: Count = Field(8, ge=0, le=65536)
    """Segments that the channels of a gate share; channels with a backlog get them."""

    floating_buffers_per_stored_gate: Count = Field(32, ge=0, le=65536)
    """The same for a gate of stored map outputs. No barrier waits behind their buffers, so there
    can be more."""

    max_overdraft_buffers: Count = Field(5, ge=0, le=65536)
    """Free segments that a pipelined partition of a task in the TaskManager's own process may use
    beyond its share to finish a record. Other clients have their own settings for this and the next
    key."""

    max_buffers_per_channel: Count = Field(10, ge=1, le=1 << 24)
    """Segments that may wait for one consumer of such a partition before its producer stops
    starting new records."""

    max_open_channels_per_gate: Count = Field(64, ge=1, le=1 << 24)
    """Remote channels of stored map outputs that a gate reads at a time, so that the memory of a
    reduce task does not grow with the number of hosts."""

    exclusive_request_timeout_seconds: Seconds = Field(30, gt=0)
    """Time for which a new gate may wait for its exclusive segments."""

    partition_request_timeout_seconds: Seconds = Field(10, gt=0)
    """Time for which a request for a partition waits until its producer has registered."""

    read_segments_per_connection: Count = Field(16, ge=1, le=65536)
    """Maximum segments that one connection may hold for reads from the disk tier."""

    write_segments_per_partition: Count = Field(16, ge=1, le=65536)
    """Maximum segments that one map attempt may hold for writes to the disk tier."""

    max_partitions_per_connection: Count = Field(1024, ge=1, le=1 << 20)
    """Map outputs and pipelined partitions that one connection may write at a time."""

    max_channels_per_connection: Count = Field(65536, ge=2, le=1 << 24)
    """Gates and channels that one connection may have open at a time."""

    max_regions_per_partition: Count = Field(65536, ge=1, le=1 << 24)
    """Regions that one map output may have."""

    map_output_resume_timeout_seconds: Seconds = Field(30, gt=0)
    """Time for which the secured regions of a map output are kept after its producer's connection
    is lost, or after a restart, so that the producer can continue."""

    region_progress_timeout_seconds: Seconds = Field(120, gt=0)
    """Time for which an announced region waits for its next byte while the producer has credit.
    After it the map output fails."""

    gate_progress_timeout_seconds: Seconds = Field(20, gt=0)
    """Time after which a gate, channel or pipelined partition without progress loses its segments
    while another application waits for segments."""

    @property
    def least_network_segments(self) -> int:
        """Minimum number of segments with which a transfer can begin.

        The exclusive segments of one channel, and one segment each for the gate to share, for a
        connection that reads the disk tier and for a map attempt that writes to it.
        """
        return self.exclusive_buffers_per_channel + 3

    @model_validator(mode="after")
    def _channels_have_buffers(self) -> NetworkMemoryConfig:
        floating = min(self.floating_buffers_per_gate, self.floating_buffers_per_stored_gate)
        if self.exclusive_buffers_per_channel == floating == 0:
            raise ValueError(
                "exclusive_buffers_per_channel = 0 leaves channels of a gate without floating "
                "buffers no memory at all: set floating_buffers_per_gate and "
                "floating_buffers_per_stored_gate to at least 1"
            )
        return self

    @model_validator(mode="after")
    def _pool_large_enough(self) -> NetworkMemoryConfig:
        if self.network_segments < self.least_network_segments:
            raise ValueError(
                f"network_segments = {self.network_segments} is too small a pool: at least "
                f"{self.least_network_segments} segments (exclusive_buffers_per_channel + 3) are "
                "needed for one transfer; raise network_segments"
            )
        return self
