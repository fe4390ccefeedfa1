"""The configuration of a TaskManager and where it is read from.

A key can be set in a TOML file, as an environment variable or as a flag. Flags override the
environment, the environment overrides the file, and the file overrides the defaults. Every key has
one name: ``data_port`` in table ``[transport]`` is ``SLUICE_DATA_PORT`` and ``--data-port``. All
values are validated together, so one start shows every mistake.
"""

from __future__ import annotations

import functools
import re
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

from pydantic import BeforeValidator, Field, PrivateAttr, ValidationError, model_validator

from ....protocol.errors import ErrorCode, SluiceError
from ....protocol.limits import MAX_PROCESSES
from ....transport.address import is_loopback
from ....transport.config import EVERY_ADDRESS, LOOPBACK, AuthConfig, TransportConfig
from ....transport.errors import printable
from ....transport.settings import (
    Count,
    Seconds,
    Settings,
    format_size,
)
from ..bounds.quotas import QuotaConfig
from .cluster_config import ClusterConfig, ReplicationConfig
from .http_config import HttpConfig
from .network_memory_config import NetworkMemoryConfig
from .storage_config import StorageConfig
from .suggestion import suggestion
from .traces_config import TracesConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from pydantic.fields import FieldInfo
    from pydantic_core import ErrorDetails

ENVIRONMENT_PREFIX: Final = "SLUICE_"
CONFIG_FILE_VARIABLE: Final = "SLUICE_CONFIG"
"""Names the configuration file when there is no ``--config``."""

COMPOSE_VARIABLES: Final = frozenset(
    {"SLUICE_IMAGE", "SLUICE_SPARK_IMAGE", "SLUICE_PUBLISH_ADDRESS", "SLUICE_OPEN_FILES"}
)
"""Variables that docker-compose.yml reads; a shell that exports them may start a TaskManager."""

CLIENT_VARIABLES: Final = frozenset(
    {"SLUICE_CREDENTIAL", "SLUICE_CREDENTIAL_FILE", "SLUICE_ACCESS_TOKEN"}
)
"""Variables that clients read; a shell that exports them may start a TaskManager."""

_SERVICE_LINK = re.compile(
    r".*_(SERVICE_(HOST|PORT)(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
"""Variables that Kubernetes sets for a service whose name begins with "sluice"."""
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://\S+:\d+")
"""The value of another one; for the service sluice-data its name is SLUICE_DATA_PORT."""


class ApplicationConfig(Settings):
    """How long an application may be disconnected."""

    application_expiry_seconds: Seconds = Field(60, gt=0)
    """Time after which an application's data is dropped when its last connection has closed."""


class TaskManagerConfig(Settings):
    """All settings of a TaskManager."""

    transport: TransportConfig = Field(default_factory=TransportConfig)
    auth: AuthConfig = Field(default_factory=AuthConfig)
    memory: NetworkMemoryConfig = Field(default_factory=NetworkMemoryConfig)
    storage: StorageConfig = Field(default_factory=StorageConfig)
    applications: ApplicationConfig = Field(default_factory=ApplicationConfig)
    quotas: QuotaConfig = Field(default_factory=QuotaConfig)
    cluster: ClusterConfig = Field(default_factory=ClusterConfig)
    replication: ReplicationConfig = Field(default_factory=ReplicationConfig)
    http: HttpConfig = Field(default_factory=HttpConfig)
    traces: TracesConfig = Field(default_factory=TracesConfig)

    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value),
    ] = "info"
    """Minimum log level. At `debug` every line is written. Otherwise repeated lines, such as
    refused connections, are counted, and their number is logged once a minute."""

    log_format: Literal["text", "json"] = "text"
    """`json`: one JSON object a line, with fields for log collectors; see
    `docs/operate/metrics.md`."""

    processes: Count = Field(1, ge=1, le=MAX_PROCESSES)
    """Number of data processes. Each uses one core for data and has its own directories, its share
    of the storage and a port: `data_port`, `data_port` + 2 and so on. If an earlier start with more
    processes left directories, that many are started."""

    drain_timeout_seconds: Seconds = Field(30, ge=0)
    """Time for running transfers to finish when the daemon stops."""

    drain_migrate: bool = False
    """Move all map outputs to other TaskManagers when the daemon stops, within the same time."""

    @model_validator(mode="after")
    def _watermarks_in_order(self) -> TaskManagerConfig:
        low, high = self.transport.write_watermarks(self.memory.segment_size_bytes)
        if low > high:
            raise ValueError(
                f"write_low_watermark_bytes = {low} is above write_high_watermark_bytes = {high}: "
                "lower the one or raise the other (defaults: one segment + 1, two segments)"
            )
        return self

    @model_validator(mode="after")
    def _exclusive_buffers_without_credit(self) -> TaskManagerConfig:
        if self.transport.flow_control == "watermark" and not (
            self.memory.exclusive_buffers_per_channel
        ):
            raise ValueError(
                "exclusive_buffers_per_channel = 0 needs flow_control = credit: without credit a "
                "message is as large as the exclusive buffers of its channel"
            )
        return self

    @model_validator(mode="after")
    def _loopback_only_without_identity(self) -> TaskManagerConfig:
        if self._is_open_to_others:
            return self
        listened = [("bind_host", host) for host in self.transport.bind_host or ()]
        listened += [("http_host", host) for host in self.http.http_host or ()]
        for name, host in listened:
            if not is_loopback(host):
                raise ValueError(
                    f"{name} = {host} is open to other hosts, where anybody could read and remove "
                    f"data: make a cluster secret with sluice secret create FILE and set "
                    f"cluster_secret_files, or set allow_anonymous = true, or {name} = {LOOPBACK}"
                )
        return self

    _process: int = PrivateAttr(0)

    @property
    def place(self) -> tuple[int, int]:
        """Index of the data process that this configuration is for, and their number."""
        return self._process, self.processes

    def in_process(self, process: int, processes: int, **changed: object) -> Self:
        """Return this configuration for one of several data processes, with changed sections."""
        share = self.model_copy(update={**changed, "processes": processes})
        share._process = process
        return share

    def reloaded(self, changed: Self) -> Self:
        """Return this configuration with what SIGHUP takes over from another one."""
        auth = self.auth.model_copy(
            update={
                "cluster_secret_files": changed.auth.cluster_secret_files,
                "revoked_tokens_file": changed.auth.revoked_tokens_file,
            }
        )
        taken = {name: getattr(changed, name) for name in ("quotas", "log_level", "log_format")}
        return self.model_copy(update=taken | {"auth": auth})

    @property
    def _is_open_to_others(self) -> bool:
        return bool(self.auth.cluster_secret_files) or self.auth.allow_anonymous

    def with_addresses(self) -> TaskManagerConfig:
        """Return this configuration with the addresses to listen on filled in."""
        hosts = (EVERY_ADDRESS if self._is_open_to_others else LOOPBACK,)
        bind_host, http_host = self.transport.bind_host or hosts, self.http.http_host or hosts
        return self.model_copy(
            update={
                "transport": self.transport.model_copy(update={"bind_host": bind_host}),
                "http": self.http.model_copy(update={"http_host": http_host}),
            }
        )

    @model_validator(mode="after")
    def _ports_differ(self) -> TaskManagerConfig:
        port = self.http.http_port
        if port and port == self.transport.data_port:
            raise ValueError(
                f"data_port and http_port are both {port}: give them different ports, or 0 for "
                "free ones"
            )
        return self


@dataclass(frozen=True, slots=True)
class Key:
    """One configuration key and its names everywhere."""

    section: str
    """Table of the file; empty for the top level."""
    name: str
    field: FieldInfo

    @property
    def variable(self) -> str:
        """Name of the environment variable."""
        return ENVIRONMENT_PREFIX + self.name.upper()

    @property
    def flag(self) -> str:
        """Name of the command-line flag."""
        return "--" + self.name.replace("_", "-")


def sections() -> Iterator[tuple[str, type[Settings]]]:
    """Yield the name and class of each table, with the top level (named "") last."""
    for name, field in TaskManagerConfig.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Settings):
            yield name, field.annotation
    yield "", TaskManagerConfig


@functools.cache
def keys() -> dict[str, Key]:
    """Return every key by its name, which is unique over all tables."""
    found: dict[str, Key] = {}
    tables = {name for name, _ in sections()}
    for section, settings in sections():
        for name, field in settings.model_fields.items():
            if section or name not in tables:
                if name in found:
                    raise RuntimeError(f"two configuration keys are named {name}")
                found[name] = Key(section, name, field)
    return found


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """One mistake in a configuration."""

    text: str
    """The mistake, with value, limit and remedy."""
    origin: str = ""
    """The origin of the value: a file, a variable or a flag."""

    def __str__(self) -> str:
        return printable(f"{self.text} [{self.origin}]" if self.origin else self.text)


class ConfigError(SluiceError):
    """A configuration is invalid. ``problems`` lists every mistake."""

    code = ErrorCode.CONFIGURATION

    def __init__(self, problems: tuple[ConfigProblem, ...]) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = problems


def load(
    config_file: Path | None,
    env: Mapping[str, str],
    flags: Mapping[str, object],
    check: Callable[[TaskManagerConfig], Iterable[tuple[str, str]]] | None = None,
) -> TaskManagerConfig:
    """Read and validate a configuration; flag > environment > file > default.

    Args:
        config_file: TOML file, or None.
        env: Environment variables; only names with the prefix ``SLUICE_`` are read.
        flags: Values by key name; None means not given.
        check: Returns keys and texts of further mistakes in a configuration that is valid so far.

    Raises:
        ConfigError: The file cannot be read, or the configuration has mistakes.
    """
    given = _Given()
    if config_file is not None:
        given.take_file(config_file)
    given.take_environment(env)
    given.take_flags(flags)
    config = given.validated()
    if check is not None:
        found = [ConfigProblem(text, given.origin(key)) for key, text in check(config)]
        if found:
            raise ConfigError(tuple(found))
    return config


def foreign_variables(env: Mapping[str, str]) -> list[str]:
    """Return ``SLUICE_`` variables that belong to Docker Compose or Kubernetes."""
    return [name for name, value in sorted(env.items()) if _is_foreign(name, value)]


def _is_foreign(variable: str, value: str) -> bool:
    if not variable.startswith(ENVIRONMENT_PREFIX):
        return False
    if variable.endswith("_PORT") and _SERVICE_ADDRESS.fullmatch(value):
        return True
    return variable in COMPOSE_VARIABLES or _SERVICE_LINK.fullmatch(variable) is not None


class _Given:
    """Collects values with their origins, then validates them together."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.origins: dict[str, str] = {}
        self.problems: list[ConfigProblem] = []

    def take_file(self, path: Path) -> None:
        try:
            document = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            reason = error.strerror or str(error)
            raise ConfigError(
                (ConfigProblem(f"configuration file {path} cannot be read: {reason}"),)
            ) from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ConfigError(
                (ConfigProblem(f"configuration file {path} is not TOML: {error}"),)
            ) from error
        tables = dict(sections())
        for name, value in document.items():
            if name in tables and isinstance(value, dict):
                for inner, inner_value in value.items():
                    self._take_from_table(name, inner, inner_value, str(path))
            elif name in tables:
                self.problems.append(
                    ConfigProblem(f"{name} = {value!r} must be a table: write [{name}]", str(path))
                )
            else:
                self._take_from_table("", name, value, str(path))

    def _take_from_table(self, section: str, name: str, value: object, origin: str) -> None:
        key = keys().get(name)
        if key is not None and key.section == section:
            self._set(key, value, origin)
            return
        if isinstance(value, dict) and not section:
            text = f"unknown table [{name}]{suggestion(name, [n for n, _ in sections() if n])}"
        elif key is not None:
            text = f"{name} stands in {_table(section)} but belongs to {_table(key.section)}"
        else:
            own = [each.name for each in keys().values() if each.section == section]
            places = {each.name: _table(each.section) for each in keys().values()}
            text = f"unknown key {name} in {_table(section)}{suggestion(name, own, places)}"
        self.problems.append(ConfigProblem(text, origin))

    def take_environment(self, env: Mapping[str, str]) -> None:
        by_variable = {key.variable: key for key in keys().values()}
        for variable, value in sorted(env.items()):
            if not variable.startswith(ENVIRONMENT_PREFIX) or variable == CONFIG_FILE_VARIABLE:
                continue
            if variable in CLIENT_VARIABLES or _is_foreign(variable, value):
                continue
            key = by_variable.get(variable)
            if key is not None:
                self._set(key, value, variable)
            else:
                instead = suggestion(variable, by_variable)
                self.problems.append(
                    ConfigProblem(f"unknown variable {variable}{instead}", "environment")
                )

    def take_flags(self, flags: Mapping[str, object]) -> None:
        for name, value in flags.items():
            key = keys().get(name)
            if key is None:
                text = f"unknown key {name}{suggestion(name, keys())}"
                self.problems.append(ConfigProblem(text, "flag"))
            elif value is not None:
                self._set(key, value, key.flag)

    def _set(self, key: Key, value: object, origin: str) -> None:
        self.values[key.name] = value
        self.origins[key.name] = origin

    def origin(self, name: str) -> str:
        return self.origins.get(name, "default")

    def validated(self) -> TaskManagerConfig:
        document: dict[str, Any] = {}
        for name, value in self.values.items():
            section = keys()[name].section
            (document.setdefault(section, {}) if section else document)[name] = value
        try:
            config = TaskManagerConfig.model_validate(document)
        except ValidationError as error:
            self.problems += [self._problem(details) for details in error.errors()]
        if self.problems:
            raise ConfigError(tuple(self.problems))
        return config

    def _problem(self, details: ErrorDetails) -> ConfigProblem:
        name = next((str(part) for part in reversed(details["loc"]) if part in keys()), None)
        if name is None:  # a rule about several keys, whose text names them
            return ConfigProblem(_sentence("", details))
        value = self.values[name]
        shown = f'"{_USER.sub("//…@", value)}"' if isinstance(value, str) else value
        return ConfigProblem(f"{name} = {shown}: {_sentence(name, details)}", self.origins[name])


def _table(section: str) -> str:
    return f"[{section}]" if section else "the top level"


_USER: Final = re.compile(r"//.*@")
"""User and password in a URL, which errors must not repeat."""

_BOUNDS: Final = {
    "greater_than_equal": ("ge", "must be at least"),
    "greater_than": ("gt", "must be more than"),
    "less_than_equal": ("le", "must be at most"),
    "less_than": ("lt", "must be less than"),
}

_KINDS: Final = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "a text",
    "tuple": "a list",
}


def _sentence(name: str, details: ErrorDetails) -> str:
    """Describe an invalid value of ``name`` without naming the validation library."""
    kind, context = details["type"], details.get("ctx", {})
    if kind in _BOUNDS:
        bound, words = _BOUNDS[kind]
        limit = context[bound]
        shown = f"{limit:g}" if isinstance(limit, float) else str(limit)
        return f"{words} {format_size(limit) if name.endswith('_bytes') else shown}"
    if kind == "literal_error":
        return f"must be {context['expected'].replace(chr(39), '')}"
    if kind == "value_error":
        return str(context["error"])
    if kind in ("too_short", "string_too_short"):
        return "must not be empty"
    return f"must be {_KINDS.get(kind.partition('_')[0], 'a ' + kind.partition('_')[0])}"
