"""Series for which each alert fires, and series for which it does not, for ``promtool test rules``.

A value ``a+bxn`` begins at ``a`` and grows by ``b`` in each of ``n`` minutes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

HOST: Final = 'instance="h1:7338",job="sluice"'
OTHER: Final = 'instance="h2:7338",job="sluice"'
DISK: Final = f'{HOST},tier="disk",directory="/data/1"'
GIB: Final = 1 << 30
DAY: Final = 24 * 60 * 60
OF_HOST: Final = {"instance": "h1:7338", "job": "sluice"}
OF_DISK: Final = OF_HOST | {"tier": "disk", "directory": "/data/1"}
ZERO: Final = "0+0x120"
ONE: Final = "1+0x120"


@dataclass(frozen=True)
class Case:
    """What Prometheus has, and whether the alert fires.

    Attributes:
        alert: The alert.
        series: Values in each minute, by series.
        at: When the alert is looked at.
        summary: The summary of the alert that fires; empty: none fires.
        labels: Its labels but for the severity.
    """

    alert: str
    series: dict[str, str]
    at: str
    summary: str = ""
    labels: dict[str, str] = field(default_factory=lambda: OF_HOST)


def _credit(served: str, produced: str = ZERO) -> dict[str, str]:
    return {
        f'sluice_served_channel_credit_wait_longest_seconds{{{HOST},leg="peer"}}': ZERO,
        f'sluice_served_channel_credit_wait_longest_seconds{{{HOST},leg="consumer"}}': served,
        f'sluice_producer_credit_wait_longest_seconds{{{HOST},kind="pipelined"}}': produced,
        # Others send meanwhile.
        f'sluice_sent_bytes_total{{{HOST},leg="peer",source="local"}}': "100+100x120",
    }


def _members(unreachable: str, up: str) -> dict[str, str]:
    return {
        f"sluice_taskmanagers_unreachable{{{HOST}}}": unreachable,
        f"up{{{HOST}}}": ONE,
        f"up{{{OTHER}}}": up,
    }


def _free(values: str, healthy: str = ONE) -> dict[str, str]:
    return {
        f"sluice_storage_free_bytes{{{DISK}}}": values,
        f"sluice_storage_healthy{{{DISK}}}": healthy,
    }


def _refused(reason: str, values: str) -> dict[str, str]:
    return {
        f'sluice_connections_refused_total{{{HOST},reason="{reason}"}}': values,
        f'sluice_http_refused_total{{{HOST},reason="no token"}}': ZERO,
    }


def _copies(local: str, remote: str) -> dict[str, str]:
    return {
        f"sluice_map_outputs_short_of_copies{{{HOST}}}": local,
        f"sluice_map_outputs_short_of_remote_copy{{{HOST}}}": remote,
    }


CASES: Final = (
    Case(
        "SluiceTaskManagerDown",
        {f"up{{{HOST}}}": "1+0x5 0+0x20"},
        "9m",
        "h1:7338: the TaskManager does not answer",
    ),
    Case("SluiceTaskManagerDown", {f"up{{{HOST}}}": "1+0x5 0 1+0x20"}, "9m"),
    Case("SluiceTaskManagerDown", {'up{instance="h1:9090",job="other"}': ZERO}, "9m"),
    Case(
        "SluiceRestarts",
        {f"sluice_uptime_seconds{{{HOST}}}": "600+60x5 10+60x5 10+60x5 10+60x20"},
        "20m",
        "h1:7338: restarted 3 times in an hour",
    ),
    Case(
        "SluiceRestarts",
        {f'sluice_process_restarts_total{{{HOST},process="0"}}': "0+1x40 40+0x80"},
        "40m",
        "h1:7338: restarted 40 times in an hour",
    ),
    Case("SluiceRestarts", {f"sluice_uptime_seconds{{{HOST}}}": "600+60x5 10+60x40"}, "40m"),
    Case(
        "SluiceNotReady",
        {f"sluice_taskmanager_takes_work{{{HOST}}}": "1 0+0x20"},
        "7m",
        "h1:7338: accepts no map outputs",
    ),
    Case("SluiceNotReady", {f"sluice_taskmanager_takes_work{{{HOST}}}": "1 0+0x3 1+0x20"}, "7m"),
    Case(
        "SluiceDiskFullSoon",  # 100 GiB that shrink by 25 GiB in an hour
        _free(f"{100 * GIB}-{25 * GIB // 60}x120"),
        "80m",
        "h1:7338: /data/1 will be full in four hours",
        OF_DISK,
    ),
    Case("SluiceDiskFullSoon", _free(f"{100 * GIB}-{10 * GIB // 60}x120"), "80m"),
    Case("SluiceDiskFullSoon", _free(f"{100 * GIB}+0x60 0+0x60", "1+0x60 0+0x60"), "80m"),
    Case(
        "SluiceDirectoryExcluded",
        {f"sluice_storage_healthy{{{DISK}}}": "1 0+0x20"},
        "3m",
        "h1:7338: /data/1 accepts no data",
        OF_DISK,
    ),
    Case("SluiceDirectoryExcluded", {f"sluice_storage_healthy{{{DISK}}}": ONE}, "3m"),
    Case(
        "SluiceJournalFull",
        {f"sluice_storage_journal_full{{{DISK}}}": "0 1+0x20"},
        "3m",
        "h1:7338: the journal of /data/1 has no room",
        OF_DISK,
    ),
    Case("SluiceJournalFull", {f"sluice_storage_journal_full{{{DISK}}}": ZERO}, "3m"),
    Case(
        "SluiceDamagedData",
        {f"sluice_damaged_map_outputs_dropped_total{{{HOST}}}": "0+0x5 1+0x60"},
        "30m",
        "h1:7338: damaged map outputs were found",
    ),
    Case("SluiceDamagedData", {f"sluice_damaged_map_outputs_dropped_total{{{HOST}}}": ONE}, "30m"),
    Case(
        "SluiceCopiesMissing",
        _copies("3+0x60", "2+0x60"),
        "20m",
        "h1:7338: 5 map outputs lack copies",
    ),
    Case("SluiceCopiesMissing", _copies("3+0x10 0+0x50", ZERO), "20m"),
    Case(
        "SluiceMembersPartitioned",
        _members("0 1+0x20", ONE),
        "7m",
        "h1:7338: cannot reach 1 TaskManagers",
    ),
    Case("SluiceMembersPartitioned", _members("0 1+0x20", "1 0+0x20"), "7m"),
    Case(
        "SluiceMembersPartitioned",  # one of them is down, and another is not
        _members("0 2+0x20", "1 0+0x20"),
        "7m",
        "h1:7338: cannot reach 2 TaskManagers",
    ),
    Case(
        "SluiceMembersPartitioned",  # what is down is of another cluster
        {
            f'sluice_taskmanagers_unreachable{{{HOST},cluster="a"}}': ONE,
            f'up{{{HOST},cluster="a"}}': ONE,
            f'up{{{OTHER},cluster="b"}}': ZERO,
        },
        "7m",
        "h1:7338: cannot reach 1 TaskManagers",
        OF_HOST | {"cluster": "a"},
    ),
    Case("SluiceMembersPartitioned", _members("0 1+0x3 0+0x20", ONE), "7m"),
    Case(
        "SluiceNoCredit",
        _credit("0 0+60x40"),
        "8m",
        "h1:7338: a sender has got no credit for 7m 0s",
    ),
    Case(
        "SluiceNoCredit",
        _credit(ZERO, "0+60x40"),
        "8m",
        "h1:7338: a sender has got no credit for 8m 0s",
    ),
    Case("SluiceNoCredit", _credit("0+60x4 0+60x4 0+60x4"), "14m"),
    Case("SluiceNoCredit", _credit("0+60x5 0+0x40"), "8m"),
    Case(
        "SluiceEventLoopLate",
        {f"sluice_event_loop_lag_max_seconds{{{HOST}}}": "2.5+0x20"},
        "6m",
        "h1:7338: the event loop is 2.5s late",
    ),
    Case("SluiceEventLoopLate", {f"sluice_event_loop_lag_max_seconds{{{HOST}}}": "0.2+0x20"}, "6m"),
    Case(
        "SluiceQuotaNearlyUsed",
        {f'sluice_quota_used_ratio{{{HOST},resource="disk_tier_bytes"}}': "0.95+0x20"},
        "11m",
        "h1:7338: 95% of a quota of disk_tier_bytes are used",
        OF_HOST | {"resource": "disk_tier_bytes"},
    ),
    Case(
        "SluiceQuotaNearlyUsed",
        {
            f'sluice_quota_used_ratio{{{HOST},resource="disk_tier_bytes"}}': "0.85+0x20",
            f'sluice_quota_used_ratio{{{HOST},resource="network_segments"}}': ONE,
        },
        "11m",
    ),
    Case(
        "SluiceCertificateExpires",
        {f"sluice_tls_certificate_expiry_timestamp_seconds{{{HOST}}}": f"{7 * DAY + 60}+0x20"},
        "1m",
        "h1:7338: the certificate expires in 7d 0h 0m 0s",
    ),
    Case(
        "SluiceCertificateExpires",
        {f"sluice_tls_certificate_expiry_timestamp_seconds{{{HOST}}}": f"{30 * DAY}+0x20"},
        "1m",
    ),
    Case(
        "SluiceAnonymousAccess",
        {f"sluice_anonymous_allowed{{{HOST}}}": ONE},
        "1m",
        "h1:7338: clients without a credential are served",
    ),
    Case("SluiceAnonymousAccess", {f"sluice_anonymous_allowed{{{HOST}}}": ZERO}, "1m"),
    Case(
        "SluiceManyRefusals",
        _refused("wrong proof", "0+5x20"),
        "11m",
        "h1:7338: refused 50 clients in 10 minutes",
    ),
    Case("SluiceManyRefusals", _refused("wrong proof", "0+1x20"), "11m"),
    Case("SluiceManyRefusals", _refused("hung up", "0+50x20"), "11m"),
)
