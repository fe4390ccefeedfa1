"""What each dashboard shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sluice.shuffle.taskmanager.bounds.accounts import Resource
from tools.dashboards import load_factor
from tools.dashboards.definitions import COUNT, Definition
from tools.dashboards.panels import Expressions, Panel, Query

if TYPE_CHECKING:
    from tools.dashboards.definitions import Definitions

JOB: Final = 'job=~"$job"'


@dataclass(frozen=True)
class Variable:
    """A choice at the top of a dashboard: the values of a label of a metric."""

    label: str
    metric: str


@dataclass(frozen=True)
class Contents:
    """A dashboard: rows of panels by their titles, and choices."""

    name: str
    title: str
    about: str
    variables: tuple[Variable, ...]
    rows: dict[str, list[Panel]]


def all_contents(definitions: Definitions) -> list[Contents]:
    """Return the dashboards."""
    return [cluster(definitions), host(definitions), application(definitions)]


def cluster(definitions: Definitions) -> Contents:
    """Return the dashboard of all TaskManagers together."""
    the = Expressions(definitions, JOB)
    amount, rate = the.amount, the.rate
    jobs = Variable("job", "sluice_uptime_seconds")
    alerts = 'count(ALERTS{alertname=~"Sluice.+",alertstate="firing"}) or vector(0)'
    about = "All TaskManagers of a cluster: where is it busy, and what is missing?"
    state = [
        Panel(
            "TaskManagers",
            (
                Query(f"count({the.series('up')})", COUNT, "in Prometheus"),
                Query(f"sum({the.series('up')})", COUNT, "up"),
                Query(f"sum({the.series('sluice_taskmanager_takes_work')})", COUNT, "accept work"),
            ),
            kind="stat",
            width=12,
        ),
        Panel(
            "Firing alerts",
            (Query(alerts, COUNT, "firing"),),
            kind="stat",
            width=6,
            note="The alerts of Sluice that fire now, of all jobs.",
        ),
        Panel(
            "Stored",
            (amount("sluice_stored_bytes", legend="stored"),),
            kind="stat",
            width=6,
        ),
        load_factor.by_taskmanager(the),
        Panel("Free disk", (amount("sluice_storage_free_bytes", "instance", tier="disk"),)),
        Panel("Used quotas", (amount("sluice_quota_used_ratio", "resource", how="max"),)),
    ]
    data = [
        Panel(
            "Written and read by tasks",
            (
                rate("sluice_received_bytes_total", legend="written", leg="producer"),
                rate("sluice_sent_bytes_total", "source", legend="read {{source}}", leg="consumer"),
            ),
        ),
        Panel(
            "Sent between TaskManagers",
            (
                rate("sluice_sent_bytes_total", legend="to readers", leg="peer"),
                rate("sluice_copy_sent_bytes_total", legend="copies"),
                rate("sluice_remote_written_bytes_total", legend="to the remote tier"),
            ),
        ),
        Panel("Map outputs finished", (rate("sluice_map_outputs_finished_total", "outcome"),)),
        Panel(
            "Copies missing",
            (
                amount("sluice_map_outputs_short_of_copies", legend="lack copies"),
                amount("sluice_map_outputs_short_of_remote_copy", legend="lack a remote copy"),
                amount("sluice_copies_waiting", legend="queued"),
            ),
        ),
        Panel(
            "Errors and refusals",
            (
                rate("sluice_errors_total", "code"),
                rate("sluice_connections_refused_total", legend="refused connections"),
                rate("sluice_http_refused_total", legend="refused HTTP requests"),
                rate("sluice_quota_refusals_total", "resource", legend="quota of {{resource}}"),
            ),
        ),
        Panel(
            "Versions",
            (amount("sluice_taskmanager_info", "version data_path"),),
            kind="table",
        ),
    ]
    return Contents("cluster", "Sluice: cluster", about, (jobs,), {"Now": state, "Data": data})


def host(definitions: Definitions) -> Contents:
    """Return the dashboard of one or more TaskManagers: resources, waits and latencies."""
    the = Expressions(definitions, f'{JOB},instance=~"$instance"')
    amount, rate = the.amount, the.rate
    uptime = "sluice_uptime_seconds"
    about = "One or more TaskManagers: resources, waits for credit, and latencies."
    each = "instance tier directory"
    state = [
        Panel(
            "Accepts work",
            (amount("sluice_taskmanager_takes_work", "instance", how="max"),),
            kind="stat",
            width=4,
        ),
        Panel("Uptime", (amount(uptime, "instance", how="max"),), kind="stat", width=4),
        load_factor.by_resource(the),
        Panel(
            "CPU cores",
            (
                rate("process_cpu_seconds_total", "instance"),
                rate("sluice_process_cpu_seconds_total", "instance process"),
            ),
        ),
        Panel(
            "Worst event loop lag",
            (amount("sluice_event_loop_lag_max_seconds", "instance", how="max"),),
        ),
        Panel(
            "Control memory",
            (
                amount("sluice_control_memory_used_bytes", "instance", legend="{{instance}} used"),
                amount(
                    "sluice_control_memory_capacity_bytes", "instance", legend="{{instance}} limit"
                ),
            ),
        ),
        Panel("Used storage", (amount("sluice_storage_used_bytes", each),)),
        Panel("Free storage", (amount("sluice_storage_free_bytes", each),)),
        Panel("Connections", (amount("sluice_connections", "leg"),)),
    ]
    waits = [
        Panel(
            "Network memory",
            (amount("sluice_network_memory_segments", "state"),),
            stacked=True,
        ),
        Panel(
            "Segments by use",
            (
                amount("sluice_local_pool_lent_segments", "kind"),
                amount("sluice_network_memory_wanted_segments", legend="wanted by all"),
            ),
        ),
        Panel(
            "Gates by state",
            (rate("sluice_serving_seconds_total", "state", leg="consumer"),),
            note="How many gates of reduce tasks are idle, busy and back-pressured.",
            stacked=True,
        ),
        Panel("Served channels", (amount("sluice_served_channels", "leg activity"),)),
        Panel(
            "Waiting for credit",
            (
                rate("sluice_served_channel_wait_seconds_total", "leg", wait="credit"),
                rate("sluice_producer_credit_wait_seconds_total", "kind"),
            ),
            note="How many channels and producers wait for credit.",
        ),
        Panel("Bytes by role", (rate("sluice_connection_bytes_total", "role direction"),)),
    ]
    variables = Variable("job", uptime), Variable("instance", f'{uptime}{{job=~"$job"}}')
    rows = {"Resources": state, "Waits": waits}
    histograms = [the.heat_map(one) for one in definitions.of_kind("histogram")]
    if histograms:
        rows["Times"] = histograms
    return Contents("host", "Sluice: host", about, variables, rows)


def application(definitions: Definitions) -> Contents:
    """Return the dashboard of what applications hold."""
    the = Expressions(definitions, f'{JOB},application=~"$application"')
    name = "sluice_application_held"
    held, quota = the.series(name), the.series("sluice_application_quota")
    used = f"max by (application, resource) ({held} / on (instance, application, resource) {quota})"

    def by_application(resource: Resource, legend: str = "") -> Query:
        label = resource.name.lower()
        text = f"sum by (application) ({the.series(name, resource=label)})"
        return Query(text, Definition(label, "gauge", "").unit, f"{{{{application}}}}{legend}")

    panels = [
        Panel(
            "Stored bytes",
            (
                by_application(Resource.MEMORY_TIER_BYTES, " memory"),
                by_application(Resource.DISK_TIER_BYTES, " disk"),
                by_application(Resource.REMOTE_TIER_BYTES, " remote"),
            ),
        ),
        Panel("Network memory", (by_application(Resource.NETWORK_SEGMENTS),)),
        Panel(
            "Used quotas",
            (Query(used, "percentunit", "{{application}} {{resource}}"),),
            note="The TaskManager where the largest part is used.",
        ),
        Panel(
            "Connections, channels, partitions",
            (
                by_application(Resource.CONNECTIONS, " connections"),
                by_application(Resource.CHANNELS, " channels"),
                by_application(Resource.OPEN_PARTITIONS, " open partitions"),
                by_application(Resource.MAP_OUTPUTS, " map outputs"),
            ),
            width=12,
        ),
        Panel(
            "Metadata and region areas",
            (
                by_application(Resource.METADATA_BYTES, " metadata"),
                by_application(Resource.REGION_AREAS_BYTES, " region areas"),
            ),
            width=12,
        ),
    ]
    about = "What applications hold, of the largest holders of each resource."
    variables = Variable("job", name), Variable("application", f'{name}{{job=~"$job"}}')
    return Contents("application", "Sluice: application", about, variables, {"Held": panels})
