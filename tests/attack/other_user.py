"""Connects to a Unix socket as another user, and prints the answer to a Hello.

Usage: other_user SOCKET UID. A credential of a driver may come on the standard input.
With ``drain`` behind it the socket is that of HTTP, and the answer is to a request to drain.
"""

import asyncio
import os
import sys

import click

from sluice.cli.http_client import fetch_json
from sluice.protocol.errors import ErrorCode
from sluice.protocol.identity import parse_credential
from sluice.protocol.schema import ROLE_DRIVER, ErrorResponse, HelloAck
from sluice.transport.address import Address
from tests.attack.hostile import Hostile
from tests.attack.rig import hello_of

APPLICATION = "of another user"


async def answer(path: str, credential: str) -> str:
    client = await Hostile.reach(Address(path, 0))
    hello = hello_of(ROLE_DRIVER, APPLICATION)
    if credential:
        message = await client.prove(hello, parse_credential(credential, APPLICATION))
        if not isinstance(message, ErrorResponse):
            message = await client.expect(HelloAck)
    else:
        client.send_message(hello)
        message, _ = await client.receive()
    client.abort()
    if isinstance(message, ErrorResponse):
        return f"{ErrorCode(message.code).name} {message.message}"
    return type(message).__name__


def drain(path: str) -> str:
    try:
        return str(fetch_json(f"unix:{path}", "/api/v1/drain", "POST"))
    except click.ClickException as error:
        return error.message


def main() -> None:
    path, uid, *what = sys.argv[1], int(sys.argv[2]), *sys.argv[3:]
    credential = sys.stdin.read()
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    print(drain(path) if what else asyncio.run(answer(path, credential)))


if __name__ == "__main__":
    main()
