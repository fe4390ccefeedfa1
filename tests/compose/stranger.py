"""Connects to each endpoint that is named and prints how that went; runs inside of a container."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from sluice import ShuffleClient, SluiceError
from sluice.shuffle.client.config import ClientConfig
from sluice.transport.config import TransportConfig


def transport(authority: Path | None, certificate: Path | None) -> TransportConfig:
    """Make the settings of a client that speaks TLS with these files."""
    if authority is None:
        return TransportConfig()
    return TransportConfig(
        tls_enabled=True,
        tls_ca_file=authority,
        tls_certificate_file=certificate and certificate / "certificate.pem",
        tls_key_file=certificate and certificate / "key.pem",
    )


async def main() -> None:
    """Print a line for each endpoint: ``OPEN``, or the code of the refusal and its text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("endpoints", nargs="+")
    parser.add_argument("--authority", type=Path, help="speak TLS, and trust this authority")
    parser.add_argument("--certificate", type=Path, help="directory of the certificate to show")
    given = parser.parse_args()
    config = ClientConfig(transport=transport(given.authority, given.certificate))
    for endpoint in given.endpoints:
        try:
            async with await ShuffleClient.connect(endpoint, "stranger", config):
                print(endpoint, "OPEN")
        except SluiceError as error:
            print(endpoint, error.code.name, " ".join(str(error).split()))


asyncio.run(main())
