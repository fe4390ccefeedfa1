"""The exchange in a status snapshot: gates, pipelined partitions, credit."""

from ....protocol.messages import ROLE_PEER
from ...gate.input_gate import InputGate
from ...gate.remote_input_channel import RemoteInputChannel
from ...gate.statistics import buffer_usage
from ...names import ShuffleKey
from ...partition.pipelined_result_partition import PipelinedResultPartition
from ..ingest.pipelined_output import PipelinedOutput
from ..ingest.producer_handler import ProducerHandler
from ..serve.channel_times import SENDING, WAITING_FOR_CREDIT, WAITING_FOR_DATA
from ..serve.consumer_handler import ConsumerHandler
from ..serve.credit_based_view_reader import CreditBasedViewReader
from ..serve.serving_handler import ServingHandler
from ..wiring import NetworkEnvironment
from .status import (
    ChannelStatus,
    GateStatus,
    PipelinedPartitionStatus,
    ProducersStatus,
    ServedChannelsStatus,
)


def gate_statuses(environment: NetworkEnvironment) -> tuple[GateStatus, ...]:
    """Return the status of every gate that a reduce task has open."""
    return tuple(
        _gate(number, gate, readers, handler)
        for handler in environment.handlers.values()
        if isinstance(handler, ConsumerHandler)
        for number, (gate, readers) in handler.gates.items()
    )


def _gate(
    number: int, gate: InputGate, readers: list[CreditBasedViewReader], handler: ConsumerHandler
) -> GateStatus:
    seconds = handler.gate_times[number].seconds()
    return GateStatus(
        number,
        gate.key.application_id,
        gate.key.shuffle_id,
        _channels(gate, readers),
        *buffer_usage(
            channel.buffers
            for channel in gate.channels
            if isinstance(channel, RemoteInputChannel) and channel.buffers is not None
        ),
        seconds.idle,
        seconds.busy,
        seconds.back_pressured,
    )


def _channels(gate: InputGate, readers: list[CreditBasedViewReader]) -> tuple[ChannelStatus, ...]:
    return tuple(
        ChannelStatus(
            reader.channel,
            "local" if channel.is_local else "remote",
            str(source.address),
            channel.queued_buffers if isinstance(channel, RemoteInputChannel) else 0,
            channel.credit.granted if isinstance(channel, RemoteInputChannel) else 0,
            channel.backlog,
            channel.bytes_in,
            channel.buffers_in,
            channel.credit.unannounced if isinstance(channel, RemoteInputChannel) else 0,
        )
        for reader, channel, source in zip(readers, gate.channels, gate.sources, strict=True)
    )


def pipelined_statuses(environment: NetworkEnvironment) -> tuple[PipelinedPartitionStatus, ...]:
    """Look at every pipelined partition, written or only read."""
    outputs: dict[tuple[ShuffleKey, int], PipelinedOutput] = {
        (output.key, output.map_attempt_id): output for output in _pipelined_outputs(environment)
    }
    return tuple(
        _pipelined(key, map_attempt_id, partition, outputs.get((key, map_attempt_id)))
        for key, map_attempt_id, partition in environment.partitions.pipelined
        if isinstance(partition, PipelinedResultPartition)
    )


def _pipelined(
    key: ShuffleKey,
    map_attempt_id: int,
    partition: PipelinedResultPartition,
    output: PipelinedOutput | None,
) -> PipelinedPartitionStatus:
    seen = partition.statistics()
    queues, pool = seen.queued_buffers, seen.pool
    waited = seen.soft_back_pressured_seconds + seen.hard_back_pressured_seconds
    if output is not None and output.is_open:
        waited = output.credit_wait.seconds
    return PipelinedPartitionStatus(
        application_id=key.application_id,
        shuffle_id=key.shuffle_id,
        map_attempt_id=map_attempt_id,
        partition_type=partition.partition_type.name,
        state=seen.state,
        subpartitions=len(queues),
        queued_buffers=sum(queues),
        shortest_queue=min(queues),
        longest_queue=max(queues),
        used_segments=pool.lent_segments - (0 if output is None else output.ready_segments),
        limit_segments=pool.size_segments,
        overdraft_segments=pool.overdraft_segments,
        available_credit=0 if output is None else output.available_credit,
        back_pressured=output is not None and output.credit_wait.is_waiting,
        back_pressured_seconds=waited,
        bytes_out=seen.bytes_out,
        buffers_out=seen.buffers_out,
    )


def producer_statuses(environment: NetworkEnvironment) -> tuple[ProducersStatus, ...]:
    """Add up the credit of the producers of map outputs and of pipelined partitions."""
    services = environment.producer_services
    map_outputs = sum(
        handler.stored_credit
        for handler in environment.handlers.values()
        if isinstance(handler, ProducerHandler)
    )
    pipelined = sum(output.available_credit for output in _pipelined_outputs(environment))
    return (
        ProducersStatus("map_output", map_outputs, services.map_output_credit_wait.count),
        ProducersStatus("pipelined", pipelined, services.pipelined_credit_wait.count),
    )


def _pipelined_outputs(environment: NetworkEnvironment) -> list[PipelinedOutput]:
    return [
        output
        for handler in environment.handlers.values()
        if isinstance(handler, ProducerHandler)
        for output in handler.pipelined_outputs
    ]


def served_channels(environment: NetworkEnvironment) -> tuple[ServedChannelsStatus, ...]:
    """Count the channels of each serving leg by their present activity."""
    peer, consumer = [0, 0, 0, 0], [0, 0, 0, 0]
    for handler in environment.handlers.values():
        if not isinstance(handler, ServingHandler):
            continue
        sums = peer if handler.connection.role == ROLE_PEER else consumer
        for times in handler.times:
            sums[0] += times.counts[SENDING]
            sums[1] += times.counts[WAITING_FOR_DATA]
            sums[2] += times.counts[WAITING_FOR_CREDIT]
        sums[3] += sum(reader.credit.available for reader in handler.readers.values())
    return ServedChannelsStatus("peer", *peer), ServedChannelsStatus("consumer", *consumer)
