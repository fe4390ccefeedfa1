"""Where a TaskManager is reached, as people write it."""

from protocol.errors import ErrorCode, SluiceError
from transport.connector import Address

_UNIX = "unix:"


class InvalidEndpoint(SluiceError):
    """Neither ``unix:PATH`` nor ``HOST:PORT``."""

    code = ErrorCode.CONFIGURATION


def parse_endpoint(endpoint: str) -> Address:
    """Make an address of ``unix:/path/of/socket`` or ``host:port``.

    Raises:
        InvalidEndpoint: It is neither.
    """
    if endpoint.startswith(_UNIX):
        path = endpoint.removeprefix(_UNIX)
        if path.startswith("/"):
            return Address(path, 0)
    else:
        host, _, port = endpoint.rpartition(":")
        if host and port.isdecimal() and 0 < int(port) < 65536:
            return Address(host.strip("[]"), int(port))
    raise InvalidEndpoint(
        "Endpoint of a TaskManager cannot be understood",
        value=endpoint,
        limit="unix:/path/of/socket or host:port",
        remedy="Take it from the TaskManager's settings: socket_path, or bind_host and data_port",
    )
