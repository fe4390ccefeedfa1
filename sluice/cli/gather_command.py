"""``sluice gather``: one archive for a bug report, without secrets."""

from __future__ import annotations

import importlib.metadata
import io
import os
import platform
import re
import resource
import tarfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import msgspec

from ..protocol.access_token import SCOPE_STATUS
from ..protocol.errors import SluiceError
from ..shuffle.client.credentials import CREDENTIAL_FILE_VARIABLE, CREDENTIAL_VARIABLE
from ..shuffle.taskmanager.config.taskmanager_config import (
    CONFIG_FILE_VARIABLE,
    ConfigError,
    load,
)
from ..shuffle.taskmanager.status.status import InvalidStatus, data_path
from ..transport import private_file
from ..transport.access import read_secret
from .doctor_command import examine
from .endpoints import STATUS_PATH
from .http_client import (
    SECRET_FILES_VARIABLE,
    TOKEN_VARIABLE,
    Given,
    default_url,
    fetch,
    http_url,
    proof_options,
)
from .printing import one_line, print_json
from .redaction import REMOVED, is_sensitive, known_forms, redact, redact_values
from .reports import GatherReport

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PAGES: Final = {
    "status.json": STATUS_PATH,
    "metrics.txt": "/metrics",
    "readiness.json": "/readyz",
}
"""What is asked for at each HTTP port."""

MAX_LOG_BYTES: Final = 64 * 1024 * 1024
"""Maximum bytes of a log, from its end."""

_DISTRIBUTION: Final = "sluice-shuffle"
_SHOWN_VARIABLES: Final = re.compile(r"(SLUICE|SPARK|PYSPARK|JAVA|AWS|PYTHON)_\w+|PYTHONPATH|PATH")
_LIMITS: Final = ("NOFILE", "NPROC", "AS", "MEMLOCK", "STACK", "CORE")
_MAX_SECRET_BYTES: Final = 4096


@click.command(short_help="Gather an archive for a bug report.")
@click.argument("urls", nargs=-1, metavar="[URL]...")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The archive to write.  [default: sluice-DATE.tar.gz]",
)
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    envvar=CONFIG_FILE_VARIABLE,
    help=f"Configuration of the TaskManager; also by {CONFIG_FILE_VARIABLE}.",
)
@click.option(
    "--log",
    "logs",
    multiple=True,
    type=click.Path(path_type=Path),
    help="A log whose end is taken; may be given several times.",
)
@click.option(
    "--log-bytes",
    type=click.IntRange(1, MAX_LOG_BYTES),
    default=1024 * 1024,
    show_default=True,
    help="Bytes to take of each log.",
)
@click.option("--json", "as_json", is_flag=True, help="Print what was gathered as JSON.")
@proof_options
def gather(  # noqa: PLR0913 - one parameter for each option
    urls: tuple[str, ...],
    out: Path | None,
    config_file: Path | None,
    logs: tuple[Path, ...],
    log_bytes: int,
    as_json: bool,
    secret_file: Path | None,
    token_file: Path | None,
) -> None:
    """Write status, metrics, configuration, versions, limits and the findings of sluice doctor.

    The status and the metrics are those of the TaskManagers at URL... What cannot be had is listed
    in the archive, and is no failure. Secrets, tokens, passwords and private keys are removed from
    every file; names of hosts, applications and paths stay. Look into it before you publish it.
    """
    path = out or Path(time.strftime("sluice-%Y%m%d-%H%M%S.tar.gz"))
    asked = [http_url(url) for url in dict.fromkeys(urls or (default_url(),))]
    given = Given(secret_file, token_file)
    files: dict[str, str] = {}
    missing: dict[str, str] = {}
    known = known_forms(_secrets(config_file, given, os.environ))
    files.update(_texts(asked, config_file, given, missing))
    for number, log in enumerate(logs):
        try:
            files[f"logs/{number}-{log.name}"] = _tail(log, log_bytes)
        except OSError as error:
            missing[str(log)] = error.strerror or str(error)
    clean = {name: redact(text, known) for name, text in files.items()}
    sizes = {name: len(text.encode(errors="replace")) for name, text in clean.items()}
    report = GatherReport(str(path), _versions(), _limits(), _environment(), sizes, missing)
    report = msgspec.convert(redact_values(msgspec.to_builtins(report), known), GatherReport)
    try:
        _write(path, {"about.json": _pretty(report)} | clean)
    except OSError as error:
        raise click.ClickException(f"{path} cannot be written: {error.strerror}") from None
    if as_json:
        print_json(report)
        return
    click.echo(f"{path}: {len(clean) + 1} files; secrets are removed, look into it all the same")
    for name, reason in report.missing.items():
        click.echo(f"left out  {name}: {one_line(reason)}")


def _texts(
    urls: list[str], config_file: Path | None, given: Given, missing: dict[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield names and texts, and note what is missing."""
    try:
        token = given.token(SCOPE_STATUS)
    except click.ClickException as error:
        token, missing["token"] = "", error.message
    for number, url in enumerate(urls):
        for name, page in PAGES.items():
            try:
                text = fetch(url, page, token=token).body.decode(errors="replace")
            except (click.ClickException, InvalidStatus) as error:
                missing[f"{name} of {url}"] = str(error)
            else:
                yield f"taskmanagers/{number}/{name}", text
        yield f"taskmanagers/{number}/url.txt", url + "\n"
    if config_file is not None:
        try:
            yield "config.toml", _tail(config_file, MAX_LOG_BYTES)
        except OSError as error:
            missing[str(config_file)] = error.strerror or str(error)
    try:
        yield "config.json", load(config_file, os.environ, {}).model_dump_json(indent=2)
    except ConfigError as error:
        missing["config.json"] = "; ".join(map(str, error.problems))
    yield "doctor.json", _pretty(examine(urls, config_file, "", given))


def _secrets(
    config_file: Path | None, given: Given, environment: Mapping[str, str]
) -> Iterator[bytes | str]:
    """Yield the secrets in the variables and files that this command knows."""
    for name, value in environment.items():
        if is_sensitive(name) and not name.endswith(("_FILE", "_FILES")):
            yield value
    paths = [given.secret_file, given.token_file, _path(environment.get(CREDENTIAL_FILE_VARIABLE))]
    paths += [_path(each) for each in environment.get(SECRET_FILES_VARIABLE, "").split(",")]
    with suppress(ConfigError):
        paths += load(config_file, environment, {}).auth.cluster_secret_files
    for path in dict.fromkeys(paths):
        if path is not None:
            with suppress(OSError):
                yield private_file.read(path, _MAX_SECRET_BYTES).strip()
            with suppress(SluiceError):
                yield read_secret(path)
    yield from filter(None, map(environment.get, (TOKEN_VARIABLE, CREDENTIAL_VARIABLE)))


def _path(text: str | None) -> Path | None:
    return Path(text.strip()).expanduser() if text and text.strip() else None


def _tail(path: Path, most_bytes: int) -> str:
    """Return the end of a file, from the beginning of a line.

    Raises:
        OSError: It cannot be read, or is not a regular file.
    """
    if not path.is_file():
        path.stat()  # raises for a missing one
        raise IsADirectoryError(None, "it is not a regular file")
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - most_bytes))
        data = file.read(most_bytes)
    if size > most_bytes:
        # A cut line may begin in the middle of a secret that no pattern recognizes any longer.
        data = data.partition(b"\n")[2]
    return data.decode(errors="replace")


def _versions() -> dict[str, str]:
    found = {
        "sluice": importlib.metadata.version(_DISTRIBUTION),
        "data path": data_path(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "processors": str(os.cpu_count()),
    }
    for requirement in importlib.metadata.requires(_DISTRIBUTION) or ():
        name = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
        if "extra ==" not in requirement or name in ("pyspark", "obstore"):
            with suppress(importlib.metadata.PackageNotFoundError):
                found[name] = importlib.metadata.version(name)
    return found


def _limits() -> dict[str, str]:
    found = {}
    for name in _LIMITS:
        number = getattr(resource, f"RLIMIT_{name}", None)
        if number is not None:
            soft, hard = resource.getrlimit(number)
            found[name.lower()] = f"{_limit(soft)}, at most {_limit(hard)}"
    return found


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)


def _environment() -> dict[str, str]:
    return {
        name: REMOVED if is_sensitive(name) and not name.endswith(("_FILE", "_FILES")) else value
        for name, value in sorted(os.environ.items())
        if _SHOWN_VARIABLES.fullmatch(name)
    }


def _pretty(report: msgspec.Struct) -> str:
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode()


def _write(path: Path, files: dict[str, str]) -> None:
    """Write the archive, for its owner alone; an existing file stays.

    Raises:
        OSError: It exists or cannot be written.
    """
    now = int(time.time())
    folder = path.name.partition(".")[0]
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, text in files.items():
            data = text.encode(errors="replace")
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size, member.mtime, member.mode = len(data), now, 0o600
            archive.addfile(member, io.BytesIO(data))
