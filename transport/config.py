"""Settings of the transport: addresses, watermarks, deadlines, socket options."""

from __future__ import annotations

import ipaddress
import socket
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from ..protocol.limits import MAX_CONTROL_BYTES, PEERS_ENCRYPTED
from .address import Address, InvalidAddress, is_every_address, is_loopback
from .settings import (
    NONE_ALLOWED,
    Bytes,
    Count,
    FileMode,
    FilePath,
    HostName,
    ListenHosts,
    Port,
    Seconds,
    Settings,
    SocketPath,
    split_list,
)

LOOPBACK: Final = "127.0.0.1"
EVERY_ADDRESS: Final = "0.0.0.0"

_MAX_WATERMARK_BYTES: Final = 1024 * 1024 * 1024
"""uvloop keeps a watermark in 32 bits."""

_MIN_SECONDS: Final = 0.01
"""No side answers faster, not even on the same host."""

_MAX_USER_TIMEOUT_SECONDS: Final = 2_147_483
"""The kernel counts milliseconds in 31 bits."""


class TransportConfig(Settings):
    """How a TaskManager listens, connects and writes."""

    bind_host: Annotated[ListenHosts | None, NONE_ALLOWED] = None
    """Addresses that the data port listens on, such as `10.0.0.1, 2001:db8::1`; `*` is every IPv4
    and IPv6 address. None: `0.0.0.0` with a cluster secret or `allow_anonymous`, otherwise
    `127.0.0.1`. As a flag or variable: separated by commas."""

    data_port: Port = 7337
    """TCP port for other TaskManagers and for clients without a Unix socket; 0 picks a free one."""

    advertised_host: Annotated[HostName | None, NONE_ALLOWED] = None
    """Host name or address at which others reach this TaskManager. None: the first address of
    `bind_host` that is not a loopback address, or the host's name if `bind_host` is every address.
    If that name resolves only to the loopback, the TaskManager warns and advertises the address of
    the network interface."""

    advertised_port: Annotated[Annotated[Port, Field(ge=1)] | None, NONE_ALLOWED] = None
    """Port at which others reach the data port if ports are mapped. None: `data_port`."""

    socket_path: Annotated[SocketPath | None, NONE_ALLOWED] = None
    """Unix socket for clients on the same host. None: no Unix socket. The socket file of a dead
    daemon is replaced."""

    socket_mode: FileMode = 0o660
    """Permissions of the Unix socket, in base 8."""

    write_low_watermark_bytes: Annotated[
        Annotated[Bytes, Field(ge=0, le=_MAX_WATERMARK_BYTES)] | None, NONE_ALLOWED
    ] = None
    """A connection is writable again when its write buffer is at or below this. None: a segment
    plus one byte."""

    write_high_watermark_bytes: Annotated[
        Annotated[Bytes, Field(ge=1, le=_MAX_WATERMARK_BYTES)] | None, NONE_ALLOWED
    ] = None
    """A connection stops being writable when its write buffer is above this. None: two segments."""

    connect_timeout_seconds: Seconds = Field(5, ge=_MIN_SECONDS)
    """Time to reach another TaskManager, all attempts together."""

    connect_retries: Annotated[Annotated[Count, Field(ge=0)] | None, NONE_ALLOWED] = None
    """Most retries after a failed first attempt, with growing pauses. None: until
    `connect_timeout_seconds`. A reader of Spark gets an error at once if nothing listens at the
    address, and retries itself."""

    handshake_timeout_seconds: Seconds = Field(10, ge=_MIN_SECONDS)
    """Time from an accepted connection to the end of its handshake."""

    idle_connection_timeout_seconds: Annotated[
        Annotated[Seconds, Field(ge=_MIN_SECONDS)] | None, NONE_ALLOWED
    ] = 600
    """Time after which a connection that holds nothing, and at most sends Pings, is closed. Clients
    reconnect when they need to. None: idle connections stay open."""

    frame_timeout_seconds: Seconds = Field(60, ge=_MIN_SECONDS)
    """Time from the first byte of a frame to its last."""

    keepalive_seconds: Seconds = Field(30, gt=0)
    """Silence after which a connection is probed."""

    tcp_user_timeout_seconds: Annotated[
        Annotated[Seconds, Field(ge=_MIN_SECONDS, le=_MAX_USER_TIMEOUT_SECONDS)] | None,
        NONE_ALLOWED,
    ] = 60
    """Time after which a TCP connection ends if the other host does not acknowledge data or
    keepalive probes, or its program does not read (TCP_USER_TIMEOUT). Raise it if readers pause
    longer, as in a garbage collection. None: the kernel's default, 15 minutes or more."""

    listen_backlog: Count = Field(1024, ge=1, le=65535)
    """Length of the kernel's queue of connections to accept."""

    max_connections: Count = Field(8192, ge=1)
    """Maximum number of connections; more are refused."""

    max_handshakes: Count = Field(1024, ge=1)
    """Maximum number of connections in their handshake, over TCP and the Unix socket each. Above it
    the address that has most of them loses its oldest one. So clients without a key cannot use up
    `max_connections`."""

    max_control_memory_bytes: Bytes = Field(64 * 1024 * 1024, ge=MAX_CONTROL_BYTES)
    """Memory for partly received messages and unread replies, all connections together. When it is
    used up, the tenant that uses most of it loses connections."""

    connections_per_peer: Count = Field(1, ge=1, le=64)
    """TCP connections to each other TaskManager."""

    peer_idle_timeout_seconds: Seconds = Field(30, ge=0)
    """Time for which an unused connection to another TaskManager is kept; 0 closes it after its
    last user."""

    flow_control: Literal["credit", "watermark"] = "credit"
    """Flow control of the connections that this TaskManager makes to others. `credit`: a stuck
    reader stops only its own channel. `watermark`, for comparisons: only the socket's buffers limit
    the data, and a stuck reader stops all channels of its connection. Clients always use credit."""

    close_timeout_seconds: Seconds = Field(5, gt=0)
    """Time in which a closing connection may flush its write buffer, and in which the other side
    may read an error and close."""

    event_loop: Literal["uvloop", "asyncio"] = "uvloop"
    """Event loop of the data plane; `asyncio` is for debugging and twice as slow."""

    tls_enabled: bool = False
    """Use TLS on the data port and for connections to other TaskManagers, see
    `docs/operate/tls.md`. The Unix socket does not use TLS."""

    tls_certificate_file: Annotated[FilePath | None, NONE_ALLOWED] = None
    """Certificate to show, PEM, followed by intermediate certificates. A TaskManager needs one; a
    client needs one if TaskManagers require it."""

    tls_key_file: Annotated[FilePath | None, NONE_ALLOWED] = None
    """Private key of `tls_certificate_file`, PEM, not encrypted."""

    tls_ca_file: Annotated[FilePath | None, NONE_ALLOWED] = None
    """Certificates of the authorities to trust, PEM. The system's authorities are not trusted."""

    tls_require_client_certificate: bool = True
    """Accept only clients and TaskManagers that show a certificate of a trusted authority."""

    tls_check_host_name: bool = True
    """Connect only to a TaskManager whose certificate names the requested host."""

    tls_minimum_version: Literal["1.2", "1.3"] = "1.3"
    """Minimum version of TLS."""

    @field_validator("advertised_host")
    @classmethod
    def _one_address(cls, given: str | None) -> str | None:
        if given is not None and is_every_address(given):
            raise ValueError(
                "stands for every address of a host, and other hosts cannot connect to it: set the "
                "name or address under which they reach this host, or leave it out"
            )
        return given

    @model_validator(mode="after")
    def _tls_complete(self) -> TransportConfig:
        if not self.tls_enabled:
            return self
        if (self.tls_certificate_file is None) != (self.tls_key_file is None):
            raise ValueError(
                f"tls_certificate_file = {self.tls_certificate_file} and tls_key_file = "
                f"{self.tls_key_file}: give both or neither"
            )
        if self.tls_ca_file is None:
            raise ValueError(
                "tls_enabled = true requires tls_ca_file: name the file with the certificates of "
                "the authorities to trust"
            )
        return self

    def features(self) -> int:
        """Return the features for a TaskManager's HelloAck."""
        return PEERS_ENCRYPTED if self.tls_enabled else 0

    def write_watermarks(self, segment_size_bytes: int) -> tuple[int, int]:
        """Return the low and the high write watermark in bytes, or their defaults."""
        low, high = self.write_low_watermark_bytes, self.write_high_watermark_bytes
        return (
            segment_size_bytes + 1 if low is None else low,
            2 * segment_size_bytes if high is None else high,
        )

    def reachable_host(self) -> str:
        """Return the host to advertise."""
        if self.advertised_host is not None:
            return self.advertised_host
        hosts = self.bind_host or (LOOPBACK,)
        if any(map(is_every_address, hosts)):
            return socket.gethostname()
        return next((host for host in hosts if not is_loopback(host)), hosts[0])


class AuthConfig(Settings):
    """Decides who may connect."""

    cluster_secret_files: Annotated[tuple[FilePath, ...], BeforeValidator(split_list)] = ()
    """Files with the secrets that the TaskManagers of a cluster share, made with
    `sluice secret create`. The first is proven to others, all are accepted. Empty: no
    authentication. As a flag or variable: separated by commas."""

    revoked_tokens_file: Annotated[FilePath | None, NONE_ALLOWED] = None
    """File with the ids of tokens that are no longer accepted, as `sluice token show` prints them,
    one on a line. SIGHUP reloads it, and the secrets. None: no token is revoked."""

    allow_anonymous: bool = False
    """Serve clients and TaskManagers without a credential, even from other hosts: everyone who
    reaches a port can read, write and remove their data."""

    address_aliases: Annotated[tuple[str, ...], BeforeValidator(split_list)] = ()
    """Further addresses (`HOST:PORT`) under which clients reach the data port without TLS, such as
    that of a proxy or a mapped port. A client that dialed another address is refused. As a flag or
    variable: separated by commas."""

    peer_networks: Annotated[tuple[str, ...], BeforeValidator(split_list)] = ()
    """Networks that this TaskManager may connect to for the gates of clients, such as `10.0.0.0/8`.
    Empty: any address. As a flag or variable: separated by commas."""

    @field_validator("address_aliases")
    @classmethod
    def _addresses(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        for text in given:
            try:
                Address.parse(text)
            except InvalidAddress as error:
                raise ValueError(f'"{text}" is not an address: write HOST:PORT') from error
        return given

    @model_validator(mode="after")
    def _tokens_have_secrets(self) -> AuthConfig:
        if self.revoked_tokens_file is not None and not self.cluster_secret_files:
            raise ValueError(
                "revoked_tokens_file revokes tokens of a cluster secret: set cluster_secret_files"
            )
        return self

    @field_validator("peer_networks")
    @classmethod
    def _networks(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        for text in given:
            try:
                ipaddress.ip_network(text)
            except ValueError as error:
                raise ValueError(
                    f'"{text}" is not a network ({error}): write 10.0.0.0/8 or 2001:db8::/32'
                ) from None
        return given
