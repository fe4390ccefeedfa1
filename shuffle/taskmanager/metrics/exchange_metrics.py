"""Metrics of the exchange: gates and their channels, pipelined partitions, credit, connections.

Seconds of waiting include waits that still last. All labels take their values from fixed sets. At
the end of the module are the short forms of metric families that ``metrics`` uses as well.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from prometheus_client import Metric

    from ..status.status import TaskManagerStatus


CHANNEL_KINDS: Final = ("local", "remote")
PIPELINED_STATES: Final = ("open", "finished")
FLOW_CONTROL_MODES: Final = ("credit", "watermark")
LEGS: Final = {
    "handshake": "handshake",
    "producer": "producer",
    "consumer": "consumer",
    "driver": "driver",
    "copier": "copier",
    "peer in": "peer",
    "peer out": "peer",
}
"""The role of the connecting side, by leg; this TaskManager makes ``peer out`` connections."""


def exchange_metrics(status: TaskManagerStatus) -> Iterator[Metric]:
    """Yield the families of one snapshot."""
    yield from _gates(status)
    yield from _channels(status)
    yield from _pipelined_partitions(status)
    yield from _served_channels(status)
    yield from _producers(status)
    yield from _connections(status)
    yield from _traffic(status)


def _gates(status: TaskManagerStatus) -> Iterator[Metric]:
    gates = status.gates
    yield gauge("gates", "Open input gates.", len(gates))
    yield total("gates_opened", "Input gates opened.", status.counters.gates_opened)
    yield gauge(
        "gates_full",
        "Open input gates whose buffers are all in use.",
        sum(gate.is_full for gate in gates),
    )
    yield gauges(
        "input_used_buffers",
        "Receive buffers of gates that hold data or receive it: input pool usage.",
        "kind",
        {
            "exclusive": sum(gate.exclusive_used for gate in gates),
            "floating": sum(gate.floating_used for gate in gates),
        },
    )
    yield gauges(
        "input_limit_buffers",
        "Receive buffers that gates have, or may have now.",
        "kind",
        {
            "exclusive": sum(gate.exclusive_buffers for gate in gates),
            "floating": sum(gate.floating_limit for gate in gates),
        },
    )


def _channels(status: TaskManagerStatus) -> Iterator[Metric]:
    channels = [channel for gate in status.gates for channel in gate.channels]
    count, credit, unannounced, backlog = (dict.fromkeys(CHANNEL_KINDS, 0.0) for _ in range(4))
    queues: dict[str, list[int]] = {kind: [] for kind in CHANNEL_KINDS}
    for channel in channels:
        count[channel.kind] += 1
        queues[channel.kind].append(channel.queued_buffers)
        credit[channel.kind] += channel.available_credit
        unannounced[channel.kind] += channel.unannounced_credit
        backlog[channel.kind] += channel.backlog_buffers
    yield gauges("channels", "Input channels of open gates.", "kind", count)
    yield from lengths(
        "channel_queued_buffers", "Buffers received and not sent on, by channel", "kind", queues
    )
    yield gauges("channel_available_credit", "Credits that sources may use.", "kind", credit)
    yield gauges(
        "channel_unannounced_credit",
        "Free buffers that are not announced to sources yet.",
        "kind",
        unannounced,
    )
    yield gauges("channel_backlog_buffers", "Buffers waiting at sources.", "kind", backlog)


def _pipelined_partitions(status: TaskManagerStatus) -> Iterator[Metric]:
    partitions, counters = status.pipelined_partitions, status.counters
    states = Counter(partition.state for partition in partitions)
    yield gauges(
        "pipelined_partitions",
        "Pipelined partitions that are written or read; finished ones are still read.",
        "state",
        {state: states[state] for state in PIPELINED_STATES},
    )
    yield total(
        "pipelined_partitions_opened",
        "Pipelined partitions opened.",
        counters.pipelined_partitions_opened,
    )
    yield totals(
        "pipelined_partitions_ended",
        "Pipelined partitions by how their producer ended them.",
        ("outcome",),
        {
            ("finished",): counters.pipelined_partitions_finished,
            ("failed",): counters.pipelined_partitions_failed,
        },
    )
    yield gauge(
        "output_used_buffers",
        "Buffers of pipelined partitions that hold data: output pool usage.",
        sum(partition.used_segments for partition in partitions),
    )
    yield gauge(
        "output_limit_buffers",
        "Buffers that pipelined partitions may hold now.",
        sum(partition.limit_segments for partition in partitions),
    )
    subpartitions = sum(partition.subpartitions for partition in partitions)
    queued = sum(partition.queued_buffers for partition in partitions)
    yield gauge("subpartitions", "Subpartitions of pipelined partitions.", subpartitions)
    what = "Buffers and events that wait in subpartitions"
    yield gauge("subpartition_queued_buffers", f"{what}.", queued)
    yield gauge(
        "subpartition_queued_buffers_min",
        f"{what}: the shortest queue.",
        min((partition.shortest_queue for partition in partitions), default=0),
    )
    yield gauge(
        "subpartition_queued_buffers_avg",
        f"{what}: the mean.",
        queued / subpartitions if subpartitions else 0.0,
    )
    yield gauge(
        "subpartition_queued_buffers_max",
        f"{what}: the longest queue.",
        max((partition.longest_queue for partition in partitions), default=0),
    )
    yield totals(
        "events_received",
        "Events that producers of pipelined partitions sent.",
        ("type",),
        {(kind,): count for kind, count in counters.events_by_type.items()},
    )
    yield totals(
        "backward_messages_received",
        "Messages from consumers to producers: task events, resumed consumption.",
        ("type",),
        {(kind,): count for kind, count in counters.backward_messages.items()},
    )


def _served_channels(status: TaskManagerStatus) -> Iterator[Metric]:
    served = GaugeMetricFamily(
        "sluice_served_channels",
        "Channels that other TaskManagers (leg peer) and reduce tasks (leg consumer) read.",
        labels=["leg", "activity"],
    )
    for each in status.served_channels:
        served.add_metric((each.leg, "sending"), each.sending)
        served.add_metric((each.leg, "waiting_for_data"), each.waiting_for_data)
        served.add_metric((each.leg, "waiting_for_credit"), each.waiting_for_credit)
    yield served
    yield gauges(
        "served_channel_available_credit",
        "Credits that consumers granted and that are not used yet.",
        "leg",
        {each.leg: each.available_credit for each in status.served_channels},
    )
    legs = {"peer": status.counters.peer_serving, "consumer": status.counters.consumer_serving}
    yield totals(
        "served_channel_wait_seconds",
        "Time that channels had credit and no data, or data and no credit, over all channels.",
        ("leg", "wait"),
        {
            key: value
            for leg, seconds in legs.items()
            for key, value in (
                ((leg, "data"), seconds.data_wait),
                ((leg, "credit"), seconds.credit_wait),
            )
        },
    )
    yield totals(
        "serving_seconds",
        "Time by state, over all gates (leg consumer) or connections of TaskManagers (leg peer).",
        ("leg", "state"),
        {
            key: value
            for leg, seconds in legs.items()
            for key, value in (
                ((leg, "idle"), seconds.idle),
                ((leg, "busy"), seconds.busy),
                ((leg, "back_pressured"), seconds.back_pressured),
            )
        },
    )


def _producers(status: TaskManagerStatus) -> Iterator[Metric]:
    counters = status.counters
    yield gauges(
        "producer_available_credit",
        "Credits granted to producers and not used yet.",
        "kind",
        {each.kind: each.available_credit for each in status.producers},
    )
    yield gauges(
        "producers_without_credit",
        "Partitions being written that have no memory for more.",
        "kind",
        {each.kind: each.without_credit for each in status.producers},
    )
    yield gauge(
        "region_areas",
        "Areas of memory that producers on this host share with the TaskManager.",
        status.region_areas.areas,
    )
    yield gauge("region_areas_used_bytes", "Bytes of region areas.", status.region_areas.used_bytes)
    yield total(
        "region_area_received_bytes",
        "Bytes from map tasks that came through region areas, not through a socket.",
        counters.region_area_bytes_in,
    )
    yield totals(
        "producer_credit_wait_seconds",
        "Time that partitions being written had no memory for more, over all of them.",
        ("kind",),
        {
            ("map_output",): counters.producer_credit_wait_seconds,
            ("pipelined",): counters.pipelined_credit_wait_seconds,
        },
    )


def _connections(status: TaskManagerStatus) -> Iterator[Metric]:
    counters = status.counters
    open_now = Counter(
        (connection.leg, connection.role, connection.flow_control)
        for connection in status.connections
    )
    family = GaugeMetricFamily(
        "sluice_connections", "Open connections.", labels=["leg", "role", "flow_control"]
    )
    for leg, role in LEGS.items():
        for mode in FLOW_CONTROL_MODES:
            family.add_metric((leg, role, mode), open_now[leg, role, mode])
    yield family
    unwritable, buffered = dict.fromkeys(LEGS, 0.0), dict.fromkeys(LEGS, 0.0)
    for connection in status.connections:
        unwritable[connection.leg] += not connection.writable
        buffered[connection.leg] += connection.write_buffer_bytes
    yield gauges("connections_unwritable", "Above the high watermark.", "leg", unwritable)
    yield gauges("connection_write_buffer_bytes", "Written, not yet sent.", "leg", buffered)
    yield totals(
        "connections_finished_handshake",
        "Connections by whether their handshake succeeded.",
        ("result",),
        {
            ("accepted",): counters.connections_accepted,
            ("refused",): counters.connections_refused,
        },
    )


def _traffic(status: TaskManagerStatus) -> Iterator[Metric]:
    counters = status.counters
    yield totals(
        "received_bytes",
        "Payload bytes received, by leg.",
        ("leg",),
        {("producer",): counters.producer_bytes_in, ("peer",): counters.peer_bytes_in},
    )
    yield totals(
        "received_buffers",
        "Buffers received, by leg.",
        ("leg",),
        {("producer",): counters.producer_buffers_in, ("peer",): counters.peer_buffers_in},
    )
    yield totals(
        "sent_bytes",
        "Payload bytes sent, by leg and by where they were stored.",
        ("leg", "source"),
        {
            ("peer", "local"): counters.peer_bytes_out,
            ("consumer", "local"): counters.consumer_bytes_out_local,
            ("consumer", "remote"): counters.consumer_bytes_out_remote,
        },
    )
    yield totals(
        "sent_buffers",
        "Buffers sent, by leg and by where they were stored.",
        ("leg", "source"),
        {
            ("peer", "local"): counters.peer_buffers_out,
            ("consumer", "local"): counters.consumer_buffers_out_local,
            ("consumer", "remote"): counters.consumer_buffers_out_remote,
        },
    )
    roles = sorted(set(LEGS.values()))
    messages: dict[tuple[str, ...], float]
    messages = dict.fromkeys(itertools.product(roles, ("in", "out")), 0)
    sizes = dict(messages)
    for each in status.traffic:
        messages[each.role, "in"], messages[each.role, "out"] = each.messages_in, each.messages_out
        sizes[each.role, "in"], sizes[each.role, "out"] = each.bytes_in, each.bytes_out
    yield totals(
        "connection_messages",
        "Messages over accepted connections, with and without a payload.",
        ("role", "direction"),
        messages,
    )
    yield totals(
        "connection_bytes",
        "Bytes over accepted connections, with the heads of frames.",
        ("role", "direction"),
        sizes,
    )
    yield total("credits_sent", "Credits granted to senders.", counters.credits_sent)
    yield total("credits_received", "Credits granted by receivers.", counters.credits_received)


def gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    """Return a gauge without labels."""
    return GaugeMetricFamily(f"sluice_{name}", text, value=value)


def gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    """Return a gauge with one label."""
    family = GaugeMetricFamily(f"sluice_{name}", text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def total(name: str, text: str, value: float) -> CounterMetricFamily:
    """Return a counter without labels."""
    return CounterMetricFamily(f"sluice_{name}", text, value=value)


def totals(
    name: str, text: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], float]
) -> CounterMetricFamily:
    """Return a counter with labels."""
    family = CounterMetricFamily(f"sluice_{name}", text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family


def lengths(
    name: str, what: str, label: str, queues: Mapping[str, Collection[int]]
) -> Iterator[Metric]:
    """Yield the sum, least, mean and greatest length of queues, each by one label."""

    def of(kind: str, text: str, values: Mapping[str, float]) -> Metric:
        return gauges(f"{name}{kind}", text, label, values)

    yield of("", f"{what}.", {key: sum(each) for key, each in queues.items()})
    yield of(
        "_min", f"{what}: the shortest.", {k: min(each, default=0) for k, each in queues.items()}
    )
    yield of(
        "_avg",
        f"{what}: the mean.",
        {key: sum(each) / len(each) if each else 0.0 for key, each in queues.items()},
    )
    yield of(
        "_max", f"{what}: the longest.", {k: max(each, default=0) for k, each in queues.items()}
    )
