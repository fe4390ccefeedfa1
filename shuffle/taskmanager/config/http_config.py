"""Section `[http]`: the HTTP port."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, field_validator

from ....transport.settings import (
    NONE_ALLOWED,
    Count,
    FilePath,
    ListenHosts,
    Port,
    Seconds,
    Settings,
    SocketPath,
    split_list,
)


class HttpConfig(Settings):
    """The HTTP port: metrics, health and status."""

    http_host: Annotated[ListenHosts | None, NONE_ALLOWED] = None
    """Addresses that the HTTP port listens on, as for `bind_host`."""

    http_port: Port = 7338
    """TCP port of the HTTP server; 0 selects a free port."""

    http_socket_path: Annotated[SocketPath | None, NONE_ALLOWED] = None
    """Unix socket of the HTTP server, for the TaskManager's user and root. Without a cluster secret
    only requests through it may drain the TaskManager or change its settings. None: no Unix
    socket."""

    audit_log_path: Annotated[FilePath | None, NONE_ALLOWED] = None
    """File that gets a line for each request that changes the TaskManager: who, what, and the
    outcome. None: the lines are in the log."""

    names_on_loopback: bool = False
    """Show the names of applications to clients on this host without an access token. Leave it off
    if this host has other users, or a proxy that others can reach."""

    http_max_connections: Count = Field(64, ge=1, le=65536)
    """Maximum number of connections to the HTTP port. Above it, a new connection replaces the one
    that has been idle longest. A low limit of open files reduces it."""

    http_request_timeout_seconds: Seconds = Field(10, gt=0)
    """Time in which an HTTP request must arrive, and in which its client must receive a piece of
    the response."""

    http_idle_timeout_seconds: Seconds = Field(75, gt=0)
    """Time for which an idle HTTP connection stays open."""

    http_snapshot_interval_seconds: Seconds = Field(0.25, gt=0)
    """Minimum time between two snapshots for the HTTP port, on average. Requests in between get the
    last snapshot."""

    http_answer_timeout_seconds: Seconds = Field(5, gt=0)
    """Time in which the data path must answer an HTTP request; otherwise all pages return 503."""

    cluster_urls: Annotated[tuple[str, ...], BeforeValidator(split_list)] = ()
    """HTTP ports (`http://HOST:PORT`) of the TaskManagers that the page `/cluster` shows. This
    TaskManager sends them access tokens. Empty: the members of the cluster, at the port that each
    reports, and addresses of `taskmanagers` that have not answered, with the `http_port` of this
    TaskManager. As a flag or variable: separated by commas."""

    @field_validator("cluster_urls")
    @classmethod
    def _are_bare(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        for url in urls:
            try:
                parts = urlsplit(url)
                usable = parts.scheme in ("http", "https") and bool(parts.hostname)
                usable = usable and parts.port != 0 and "@" not in parts.netloc
            except ValueError:
                usable = False
            if not usable or parts.query or parts.fragment or not url.isprintable() or " " in url:
                raise ValueError(
                    f'"{url}" is not the URL of an HTTP port: write it as http://HOST:PORT'
                )
        return tuple(url.rstrip("/") for url in urls)
