"""``sluice secret`` and ``sluice token``: make what TaskManagers and applications prove."""

from __future__ import annotations

import re
import secrets
import time
from pathlib import Path
from typing import Final, TextIO

import click

from ..protocol.access_token import (
    PREFIX,
    SCOPES,
    AccessToken,
    make_access_token,
    parse_access_token,
)
from ..protocol.errors import SluiceError
from ..protocol.identity import (
    SECRET_BYTES,
    TOKEN_ID_BYTES,
    InvalidCredential,
    SubmitToken,
    parse_token,
    secret_to_text,
)
from ..shuffle.names import utf8_text
from ..transport import private_file
from ..transport.access import read_secret
from .http_client import SECRET_FILES_VARIABLE, first_secret_file
from .printing import print_json
from .reports import NewSecretReport, NewTokenReport, TokenReport

_DURATION = re.compile(r"([0-9]{1,6})([smhd])")
_UNIT_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@click.group(short_help="Create a cluster secret.")
def secret() -> None:
    """Create the secret that the TaskManagers of a cluster share."""


@secret.command("create")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def create_secret(file: Path | None, as_json: bool) -> None:
    """Write a new secret to FILE, or print it.

    FILE is made for its owner alone; one that exists is left as it is. Copy it to every TaskManager
    of the cluster and set cluster_secret_files there.
    """
    text = secret_to_text(secrets.token_bytes(SECRET_BYTES))
    if file is None:
        if as_json:
            print_json(NewSecretReport(None, text))
        else:
            click.echo(text)
        return
    try:
        private_file.write_new(file, text + "\n")
    except FileExistsError:
        raise click.ClickException(
            f"{file} exists and is left as it is: a cluster keeps its secret. Name another file"
        ) from None
    except OSError as error:
        raise click.ClickException(f"{file} cannot be written: {error.strerror}") from None
    if as_json:
        print_json(NewSecretReport(utf8_text(str(file)), None))
    else:
        click.echo(
            f"A new cluster secret is in {file}. Each TaskManager needs a copy, and the setting"
        )
        click.echo(f'cluster_secret_files = ["{file}"]')
    try:
        read_secret(file)
    except SluiceError as error:
        click.echo(f"Warning: a TaskManager of this user refuses it there. {error}", err=True)


@click.group(short_help="Create and show tokens.")
def token() -> None:
    """Create and show tokens for applications and for HTTP ports."""


@token.command("create")
@click.option(
    "--secret-file",
    type=click.Path(path_type=Path),
    help=f"The cluster secret. Default: the first file of {SECRET_FILES_VARIABLE}.",
)
@click.option(
    "--subject", default="", metavar="NAME", help="Owner of the token, for quotas and logs."
)
@click.option(
    "--expires",
    default="7d",
    show_default=True,
    metavar="TIME",
    help="Time until no application can begin with it: 30m, 12h, 7d, or never.",
)
@click.option(
    "--access",
    type=click.Choice(list(SCOPES)),
    help="Make an access token for HTTP ports instead: status reads, admin drains too.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the token to FILE, readable by its owner only; replaces an existing file.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def create_token(
    secret_file: Path | None,
    subject: str,
    expires: str,
    access: str | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Print a new submit token, or with --access an access token.

    An application that a TaskManager knows goes on after the token has expired; one that reaches a
    TaskManager for the first time does not. Give it to Spark by spark.sluice.auth.tokenFile, to a
    Python client by SLUICE_CREDENTIAL_FILE or SLUICE_CREDENTIAL.

    An access token goes to whatever asks the HTTP port, as "Authorization: Bearer TOKEN". It runs
    no applications.
    """
    if access is not None and subject:
        raise click.UsageError("an access token has no subject: leave out --subject or --access")
    if not subject.isprintable():  # also bytes of the command line that are no characters
        raise click.BadParameter(
            f'"{_printable(subject)}" has characters that cannot be printed', param_hint="--subject"
        )
    try:
        secret, at = read_secret(_secret_file(secret_file)), _expires_at(expires)
        made = (
            SubmitToken.make(secret, subject, at, secrets.token_bytes(TOKEN_ID_BYTES))
            if access is None
            else make_access_token(secret, access, at)
        )
    except SluiceError as error:
        raise click.ClickException(str(error)) from None
    if out is not None:
        try:
            private_file.replace(out, made.to_text() + "\n")
        except OSError as error:
            raise click.ClickException(f"{out} cannot be written: {error.strerror}") from None
    if as_json:
        print_json(
            NewTokenReport(
                "submit" if access is None else "access",
                None if out is None else utf8_text(str(out)),
                made.to_text() if out is None else None,
                made.token_id.hex(),
                at or None,
            )
        )
    elif out is None:
        click.echo(made.to_text())
    else:
        click.echo(f"The token is in {out}. Its id, to revoke it, is {made.token_id.hex()}")


@token.command("show")
@click.argument("file", type=click.File("r", errors="replace"), default="-")
@click.option("--json", "as_json", is_flag=True, help="Print the fields as JSON.")
def show_token(file: TextIO, as_json: bool) -> None:
    """Show the purpose, the id and the expiry of the token in FILE, or on standard input.

    A TaskManager that finds the id in its revoked_tokens_file refuses the token.
    """
    shown = _parsed(file.read(4096))
    if as_json:
        print_json(shown)
        return
    if shown.kind == "access":
        click.echo(f"access   {shown.access}")
    else:
        click.echo(f"subject  {shown.subject or '-'}")
    click.echo(f"id       {shown.id}")
    if shown.secret_id:
        click.echo(f"secret   {shown.secret_id}")
    click.echo(f"expires  {_expiry(shown)}")


def _parsed(text: str) -> TokenReport:
    """Return the fields of a token.

    Raises:
        click.ClickException: The text is not a token.
    """
    is_access = text.strip().startswith(PREFIX)
    try:
        found = parse_access_token(text) if is_access else parse_token(text)
    except InvalidCredential as error:
        raise click.ClickException(str(error)) from None
    submit = found if isinstance(found, SubmitToken) else None
    at = found.expires_at_seconds
    return TokenReport(
        kind="access" if submit is None else "submit",
        subject="" if submit is None else _printable(submit.subject),
        access=_printable(found.scope) if isinstance(found, AccessToken) else "",
        id=found.token_id.hex(),
        secret_id="" if submit is None else submit.secret_id.hex(),
        expires_at=at or None,
        expired=0 < at < time.time(),
    )


def _printable(text: str) -> str:
    """Return a text that cannot steer the terminal: a token may come from anybody."""
    return "".join(character if character.isprintable() else "?" for character in text)


def _expiry(shown: TokenReport) -> str:
    at = shown.expires_at
    if at is None:
        return "never"
    try:
        text = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))
    except (OverflowError, ValueError, OSError):  # beyond the years that this platform knows
        text = f"{at} seconds after 1970"
    return f"{text}{' (it has expired)' if shown.expired else ''}"


def _secret_file(given: Path | None) -> Path:
    if given is not None:
        return given
    first = first_secret_file()
    if first is None:
        raise click.UsageError(
            f"there is no cluster secret: give --secret-file FILE, or set {SECRET_FILES_VARIABLE}"
        )
    return first


def _expires_at(text: str) -> int:
    """Return the time of an expiry in seconds since 1970; 0 for ``never``."""
    if text == "never":
        return 0
    match = _DURATION.fullmatch(text)
    if match is None or int(match[1]) == 0:
        raise click.BadParameter(
            f'"{_printable(text)}" is not a time: write 30m, 12h, 7d or never',
            param_hint="--expires",
        )
    return int(time.time()) + int(match[1]) * _UNIT_SECONDS[match[2]]
