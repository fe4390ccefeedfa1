"""Building blocks of configuration classes: a frozen base and types that carry units.

A size is a number of bytes or has a binary unit ("32 KiB"), a time is a number of seconds, and an
absent value is ``"none"`` (TOML does not have null, and environment variables are strings). Any
other form is refused with the remedy in the message: units are never guessed.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import os
import re
import textwrap
from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from ..protocol.limits import MAX_NAME_CHARACTERS
from .address import ANY_FAMILY, MAX_SOCKET_PATH_BYTES, without_brackets

MAX_PORT: Final = 65535

SIZE_UNITS: Final = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
"""Binary units only: "KB" means 1000 bytes to some readers and 1024 to others."""

_SIZE = re.compile(r"\s*([0-9]+)\s*([A-Za-z]*)\s*")
_HIGHEST_MODE: Final = 0o777


class Settings(BaseModel):
    """Base of every configuration class: immutable, no unknown keys, documented by docstrings.

    Only help texts and generated pages use these docstrings, see :func:`descriptions`. With
    ``use_attribute_docstrings`` every start would read them, and take a tenth longer.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


@functools.cache
def descriptions(settings: type[Settings]) -> dict[str, str]:
    """Return the docstrings below the fields of a configuration class, by field.

    Raises:
        OSError: The source file is missing.
    """
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(settings))).body
    found: dict[str, str] = {}
    body = definition.body if isinstance(definition, ast.ClassDef) else []
    for field, docstring in itertools.pairwise(body):
        match field, docstring:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = inspect.cleandoc(text)
    return found


def format_size(size_bytes: int) -> str:
    """Return a size in the largest unit that divides it: ``32768`` → ``"32 KiB"``."""
    for unit, factor in reversed(SIZE_UNITS.items()):
        if size_bytes and size_bytes % factor == 0:
            return f"{size_bytes // factor} {unit}"
    return f"{size_bytes} B"


def approximate_size(size_bytes: int) -> str:
    """Return a size to about three digits: ``"1.5 GiB"``."""
    for unit, factor in reversed(SIZE_UNITS.items()):
        if size_bytes >= factor > 1:
            number = size_bytes / factor
            return f"{number:.0f} {unit}" if number >= 1000 else f"{number:.3g} {unit}"
    return f"{size_bytes} B"


def parse_size(value: object) -> object:
    """Return a size in bytes.

    Raises:
        ValueError: It is neither a whole number nor a text with a binary unit.
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError('must be a size: a whole number of bytes, or a text such as "32 KiB"')
    if isinstance(value, int):
        return value
    match = _SIZE.fullmatch(value)
    if match is None:
        raise ValueError('must be a size: a whole number of bytes, or a text such as "32 KiB"')
    digits, unit = match.groups()
    factor = SIZE_UNITS.get(unit or "B")
    if factor is None:
        raise ValueError(f'"{unit}" is not a unit of size: use one of {", ".join(SIZE_UNITS)}')
    return int(digits) * factor


def _parse_seconds(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("must be a number of seconds, such as 30 or 0.5")
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            raise ValueError(
                "must be a number of seconds without a unit, such as 30 or 0.5"
            ) from None
    return value


def _refuse_boolean(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("must be a whole number")
    return value


def _parse_none(value: object) -> object:
    return None if isinstance(value, str) and value.strip().lower() in ("", "none") else value


def _parse_mode(value: object) -> object:
    """Read a text as chmod does, in base 8; return a number unchanged."""
    if isinstance(value, str):
        try:
            value = int(value.strip().removeprefix("0o"), 8)
        except ValueError:
            raise ValueError('must be a file mode in base 8, such as "0660"') from None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _HIGHEST_MODE:
        raise ValueError("must be a file mode of at most 0o777, in base 8 such as 0o660")
    return value


def _parse_path(value: object) -> object:
    if isinstance(value, str) and "\0" in value:
        raise ValueError("must be a path: no path has a NUL character")
    return Path(value).expanduser() if isinstance(value, str | Path) and str(value) else value


def _short_enough(path: Path) -> Path:
    if len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
        raise ValueError(
            f"has {len(os.fsencode(path))} bytes, the kernel allows {MAX_SOCKET_PATH_BYTES}: "
            "choose a shorter path"
        )
    return path


def _check_host(host: str) -> str:
    """Refuse a text that cannot be a host; return an address without brackets."""
    host = without_brackets(host)
    try:
        host.encode("idna")
    except UnicodeError:
        known = False
    else:
        known = host.isprintable() and not {" ", "/", ANY_FAMILY} & set(host)
    if not known or len(host) > MAX_NAME_CHARACTERS:
        raise ValueError(
            "is not a host name or address: write node-1.example, 10.0.0.1 or 2001:db8::1"
        )
    return host


def _check_listened(host: str) -> str:
    return host if host == ANY_FAMILY else _check_host(host)


def _check_any(hosts: tuple[str, ...]) -> tuple[str, ...]:
    if not hosts:
        raise ValueError("must not be empty")
    return hosts


def split_list(value: object) -> object:
    """Split ``"a,b"``, the form of a list in an environment variable or a flag."""
    if not isinstance(value, str):
        return value
    return tuple(part.strip() for part in value.split(",") if part.strip())


def split_rules(value: object) -> object:
    """Split ``"a; b"``, the form of a list whose parts contain commas."""
    if not isinstance(value, str):
        return value
    return tuple(part.strip() for part in value.split(";") if part.strip())


Bytes = Annotated[int, BeforeValidator(parse_size)]
"""A size in bytes; also read from a text with a binary unit."""

Seconds = Annotated[float, BeforeValidator(_parse_seconds), Field(allow_inf_nan=False)]
"""A time in seconds."""

Count = Annotated[int, BeforeValidator(_refuse_boolean)]
"""A whole number."""

Port = Annotated[int, BeforeValidator(_refuse_boolean), Field(ge=0, le=MAX_PORT)]
"""A TCP port; 0 lets the kernel choose a free one."""

HostName = Annotated[str, Field(min_length=1), AfterValidator(_check_host)]
"""The name or the address of a host."""

ListenHosts = Annotated[
    tuple[Annotated[str, Field(min_length=1), AfterValidator(_check_listened)], ...],
    AfterValidator(_check_any),
    BeforeValidator(split_list),
]
"""Hosts to listen on: names and addresses, or ``*`` for every address of IPv4 and IPv6."""

FileMode = Annotated[int, BeforeValidator(_parse_mode)]
"""Permission bits of a file."""

FilePath = Annotated[Path, BeforeValidator(_parse_path)]
"""A path; a leading ``~`` is the home directory."""

SocketPath = Annotated[FilePath, AfterValidator(_short_enough)]
"""The path of a Unix socket."""

NONE_ALLOWED: Final = BeforeValidator(_parse_none)
"""Reads ``"none"`` and the empty text as None: the last part of an ``Annotated`` option."""
