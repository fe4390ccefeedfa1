"""The page of limits has every limit of the settings, and those that have no setting."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sluice.cli.config_reference import page
from sluice.protocol import limits as wire
from sluice.shuffle.taskmanager.config.storage_config import StorageConfig
from sluice.shuffle.taskmanager.config.taskmanager_config import keys
from sluice.shuffle.taskmanager.store.tiers.tier_shares import fair_share_bytes
from sluice.transport import backlog, loop_share

LIMITS = Path(__file__).parents[2] / "docs" / "operate" / "limits.md"
IS_LIMIT = re.compile(r"(max_|quota_).*|.*_timeout_seconds")
NO_LIMITS = {
    # Names and places.
    *(
        "bind_host",
        "data_port",
        "advertised_host",
        "advertised_port",
        "socket_path",
        "socket_mode",
        "listen_backlog",
    ),
    *("http_host", "http_port", "http_socket_path", "cluster_urls", "address_aliases"),
    "audit_log_path",
    *("data_directories", "memory_directory", "region_areas_directory"),
    # Who may do what.
    *("cluster_secret_files", "revoked_tokens_file", "allow_anonymous", "peer_networks"),
    "names_on_loopback",
    *("tls_enabled", "tls_certificate_file", "tls_key_file", "tls_ca_file", "tls_check_host_name"),
    *("tls_require_client_certificate", "tls_minimum_version"),
    # How it is done.
    *("flow_control", "write_low_watermark_bytes", "write_high_watermark_bytes", "event_loop"),
    *("connect_retries", "connections_per_peer", "keepalive_seconds"),
    *("segment_size_bytes", "verify_checksums", "health_check_seconds"),
    *("slow_disk_seconds", "log_format", "log_level", "processes"),
    *("traces_endpoint", "traces_sample_ratio"),
    *("journal_sync", "journal_sync_interval_seconds"),
    *("taskmanagers", "resolve_interval_seconds", "node", "zone", "drain_migrate"),
    *("remote", "remote_endpoint", "remote_part_bytes", "remote_orphan_seconds"),
}
"""Settings that bound nothing which applications take from each other."""

ROW = re.compile(r"^\| `(\w+)` \| ([^|]*?) \|", re.MULTILINE)


def limits() -> set[str]:
    return {key for key in rows(page()) if IS_LIMIT.fullmatch(key)}


def rows(text: str) -> dict[str, str]:
    """Return the second cell of each row that begins with a key."""
    return {key: cell.strip("`") for key, cell in ROW.findall(text)}


def test_the_page_of_settings_has_limits_of_every_kind():
    """The control: otherwise the tests below would say nothing."""
    assert len(rows(page())) == len(keys())
    assert limits() >= {"max_connections", "quota_channels", "frame_timeout_seconds"}


def test_every_limit_is_on_the_page():
    text = LIMITS.read_text(encoding="utf-8")
    assert not {key for key in limits() if f"`{key}`" not in text}


def test_every_other_setting_is_known_to_be_no_limit():
    """A new setting must be on the page or in NO_LIMITS."""
    text = LIMITS.read_text(encoding="utf-8")
    assert {key for key in rows(page()) if f"`{key}`" not in text} == NO_LIMITS


def size(amount: int) -> str:
    """Return a size as the page has it."""
    kib = amount // 1024
    return f"{kib // 1024} MiB" if kib % 1024 == 0 else f"{kib} KiB"


@pytest.mark.parametrize(
    "row",
    [
        f"| {backlog.MAX_UNREAD_PONGS:,} Pongs or {size(backlog.MAX_UNREAD_ANSWERS_BYTES)} of answ",
        f"| {size(backlog.MAX_UNSENT_REQUESTS_BYTES)} of requests unread |",
        f"| {size(loop_share.READS_A_TURN_BYTES)} received "
        f"and {size(loop_share.SENDS_A_TURN_BYTES)} sent",
        f"1/{loop_share.CONTENDED_DIVISOR} of that while other tenants work, and "
        f"{size(loop_share.READS_A_TURN_BYTES // loop_share.CONTENDED_DIVISOR)} received by all",
        f"a message received counts as {size(loop_share.MESSAGE_COST_BYTES)} more,",
        f"each byte of one above 4 KiB without data as {loop_share.LONG_CONTROL_COST} |",
        f"| map attempts of a gate | {wire.MAX_GATE_ATTEMPTS:,},",
        f"before the end of the handshake | {size(wire.MAX_HANDSHAKE_CONTROL_BYTES)} |",
        f"| control part | {size(wire.MAX_CONTROL_BYTES)} |",
        f"| channels of a gate | {wire.MAX_GATE_CHANNELS:,} |",
        f"| payload | a segment; {size(wire.MAX_LARGE_PAYLOAD_BYTES)} between",
        f"| event | {wire.MAX_EVENT_BYTES:,} bytes |",
        f"or host | {wire.MAX_NAME_CHARACTERS} characters |",
        f"| subject of a token | {wire.MAX_SUBJECT_BYTES} bytes |",
        f"| credit of a channel | {wire.MAX_CREDIT:,} |",
    ],
)
def test_limits_without_a_setting_are_those_of_the_code(row: str):
    assert row in LIMITS.read_text(encoding="utf-8")


def test_shares_of_the_memory_tier_are_those_of_the_rule():
    reserve = StorageConfig.model_fields["memory_tier_reserve_percent"].default
    shown = re.findall(
        r"^\| (\d+) \| ([\d.]+) % \| ([\d.]+) % \|$", LIMITS.read_text(), re.MULTILINE
    )
    assert [int(applications) for applications, _, _ in shown] == [1, 2, 3, 4, 8]
    whole = 1_000_000
    for applications, share, left in shown:
        each = fair_share_bytes(whole, int(applications), reserve)
        assert 100 * each / whole == pytest.approx(float(share), abs=0.5)
        assert 100 * (whole - int(applications) * each) / whole == pytest.approx(
            float(left), abs=0.05
        )
