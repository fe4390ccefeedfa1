"""Settings that make a Spark application shuffle through TaskManagers (docs/guide/spark.md)."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from ..transport.address import InvalidAddress
from . import driver, endpoint_check
from .endpoint_forms import check_form
from .errors import SparkIntegrationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PLUGIN: Final = "io.sluice.spark.SluicePlugin"
JAR_NAME: Final = "sluice-spark.jar"
SHUFFLE_MANAGER: Final = "io.sluice.spark.SluiceShuffleManager"
DATA_IO: Final = "io.sluice.spark.SluiceShuffleDataIO"

OLDEST_SPARK: Final = (3, 5)
NEWEST_SPARK: Final = (4, 3)
PLUGIN_SETS_THE_REST: Final = (4, 0)
"""From this version on, Spark loads plugins and `spark.jars` before the shuffle manager."""

ENDPOINTS: Final = endpoint_check.ENDPOINTS
PLUGINS: Final = "spark.plugins"
DEFAULT_PLUGINS: Final = "spark.plugins.defaultList"
"""Plugins that Spark loads before those of `spark.plugins`; a plugin in both lists is loaded once.
PySpark replaces `spark.plugins` when it starts a Spark Connect server, but not this list."""
JARS: Final = "spark.jars"
CLASS_PATHS: Final = ("spark.driver.extraClassPath", "spark.executor.extraClassPath")
DEFAULT_CLASS_PATHS: Final = (
    "spark.driver.defaultExtraClassPath",
    "spark.executor.defaultExtraClassPath",
)
"""Class paths that Spark adds to the user's."""
DEFAULT_CLASS_PATHS_SINCE: Final = (4, 1)
"""Spark 4.0 has them too, and puts its own jars there."""

_LISTS: Final = {
    PLUGINS: ",",
    DEFAULT_PLUGINS: ",",
    JARS: ",",
    **dict.fromkeys((*CLASS_PATHS, *DEFAULT_CLASS_PATHS), ":"),
}
"""Settings that are lists, with their separators."""

_ONLY_SLUICE: Final = {
    "spark.shuffle.manager": (SHUFFLE_MANAGER, "sort"),
    "spark.shuffle.sort.io.plugin.class": (
        DATA_IO,
        "org.apache.spark.shuffle.sort.io.LocalDiskShuffleDataIO",
    ),
}
"""Settings that have one value, with Sluice's and Spark's default."""

_VERSION = re.compile(r"(\d+)\.(\d+)")


class SessionBuilder(Protocol):
    """The part of ``SparkSession.builder`` that :func:`configure` needs."""

    def config(self, key: str, value: str) -> object:
        """Set one setting."""


Builder = TypeVar("Builder", bound=SessionBuilder)


def jar_path() -> Path:
    """Return the path of the plugin's jar.

    Raises:
        SparkIntegrationError: The jar is missing (it was not built in this checkout).
    """
    jar = Path(__file__).resolve().parent / "jars" / JAR_NAME
    if not jar.is_file():
        raise SparkIntegrationError(
            "The Spark plugin's jar is missing",
            value=str(jar),
            remedy="In a checkout build it with: make jar",
        )
    return jar


def spark_conf(
    endpoints: str | Iterable[str] | None = None,
    spark_version: str | None = None,
    jar: str | Path | None = None,
) -> dict[str, str]:
    """Make the settings that turn Sluice on.

    Args:
        endpoints: Where TaskManagers listen, each ``HOST:PORT``, ``dns:NAME[:PORT]`` or
            ``unix:/PATH``, as an iterable or a comma list. None: the plugin's default,
            127.0.0.1:7337.
        spark_version: Version of the Spark that will run the application, such as ``4.3.0``. None:
            the installed PySpark's, else the newest supported.
        jar: Path of the jar on the application's hosts. None: this package's own.

    Raises:
        SparkIntegrationError: An unsupported version, an invalid endpoint, or a missing jar.
    """
    version = supported_version(spark_version)
    path = str(jar) if jar is not None else str(jar_path())
    _require_listable(path, version)
    conf = {DEFAULT_PLUGINS: PLUGIN}
    if version >= PLUGIN_SETS_THE_REST:
        conf[JARS] = path
    else:
        # 3.5 makes the shuffle manager before plugins and before it fetches spark.jars.
        conf |= {
            **dict.fromkeys(CLASS_PATHS, path),
            **{key: values[0] for key, values in _ONLY_SLUICE.items()},
        }
    if endpoints is not None:
        conf[ENDPOINTS] = _endpoint_list(endpoints)
    return conf


def configure(
    builder: Builder,
    endpoints: str | Iterable[str] | None = None,
    spark_version: str | None = None,
    jar: str | Path | None = None,
    *,
    restart: bool = False,
    enabled: bool = True,
    check: bool = True,
) -> Builder:
    """Turn Sluice on or off for the next session, and return the same builder.

    It keeps jars and plugins that the user set in the builder, on the command line of
    ``spark-submit`` or in ``spark-defaults.conf``. Call it after the builder's other settings.

    Args:
        builder: ``SparkSession.builder``, or one with settings.
        endpoints: Where TaskManagers listen.
        spark_version: Version of the Spark that will run the application.
        jar: Path of the jar on the application's hosts.
        restart: Stop the running SparkContext, if any.
        enabled: False returns to plain Spark: it removes from this process the settings for Sluice
            of an earlier call or of the command line.
        check: Connect to the endpoints before PySpark starts Spark.

    Raises:
        SparkIntegrationError: As for :func:`spark_conf`. Also: a SparkContext runs without Sluice,
            a user's setting excludes Sluice, the session uses a remote Spark Connect server, or
            there is no usable Java or TaskManager.
    """
    if not enabled:
        return _configure_plain(builder, _jar_name(jar), restart=restart)
    conf = spark_conf(endpoints, spark_version, jar)
    user = driver.user_settings() | driver.builder_settings(builder)
    _require_own_server(user)
    running = driver.running_settings()
    if running is not None and not restart and not _has(conf, running):
        raise SparkIntegrationError(
            "A SparkContext is running, and its settings for shuffles can no longer be changed",
            value=running.get("spark.app.name"),
            remedy="Call configure() before the first session is built, or with restart=True, "
            "which stops it",
        )
    starts = running is None or restart
    if starts:
        conf |= _driver_class_path(conf, str(jar or jar_path()), spark_version, builder)
    settings = added(conf, user)
    if starts and check and driver.is_pyspark(builder):
        endpoint_check.require_reachable(user | settings)
    if running is not None and restart:
        driver.stop()
    for key, value in settings.items():
        builder.config(key, value)
    return builder


def _driver_class_path(
    conf: Mapping[str, str], jar: str, spark_version: str | None, builder: object
) -> dict[str, str]:
    """Add the jar to a driver that ignores `spark.jars`; return settings for it."""
    class_path = _local_path(jar)
    if driver.is_jvm_running():
        if class_path is not None:
            driver.add_jar(class_path, PLUGIN)
    elif driver.is_pyspark(builder):
        driver.require_java()
    if JARS in conf and class_path is not None and driver.has_jars_option():
        # Only the option determines which of spark.jars are on the driver's class path.
        return {_class_paths(supported_version(spark_version))[0]: class_path}
    return {}


def _require_own_server(user: Mapping[str, str]) -> None:
    """Check that this process starts the session's Spark, so that its settings apply.

    Raises:
        SparkIntegrationError: The session uses a Spark Connect server that is already running.
    """
    server = driver.connect_server(user)
    if server is not None:
        raise SparkIntegrationError(
            "The session belongs to a Spark Connect server that is already running, and a client "
            "cannot choose the shuffle of its server",
            value=server,
            remedy="Start the server with: start-connect-server.sh $(sluice spark-conf), and its "
            "clients without configure()",
        )


def _configure_plain(builder: Builder, jar_name: str, *, restart: bool) -> Builder:
    """Remove Sluice from the settings of this process.

    Raises:
        SparkIntegrationError: A SparkContext runs with Sluice.
    """
    running = driver.running_settings()
    if running is not None and _has({}, running):
        if not restart:
            raise SparkIntegrationError(
                "A SparkContext is running with Sluice, and its settings for shuffles can no "
                "longer be changed",
                value=running.get("spark.app.name"),
                remedy="Call configure() with enabled=False and restart=True, which stops it, or "
                "restart the kernel",
            )
        driver.stop()
    settings = driver.user_settings() | driver.builder_settings(builder)
    plain = without_sluice(settings, jar_name)
    for key in (*plain, ENDPOINTS):
        driver.forget(builder, key)
    for key in plain.keys() & _LISTS.keys():
        if plain[key]:
            builder.config(key, plain[key])
    # Settings that still name Sluice are in a file, or on a command line that PySpark uses later.
    settings = driver.user_settings() | driver.builder_settings(builder)
    for key, value in without_sluice(settings, jar_name).items():
        builder.config(key, value)
    return builder


def without_sluice(settings: Mapping[str, str], jar_name: str) -> dict[str, str]:
    """Return the settings that name Sluice, with their values without it.

    Args:
        settings: Settings of the user.
        jar_name: File name of the plugin's jar.
    """
    result: dict[str, str] = {}
    for key, separator in _LISTS.items():
        entries = _entries(settings.get(key, ""), separator)
        others = [each for each in entries if each != PLUGIN and _file_name(each) != jar_name]
        if others != entries:
            result[key] = separator.join(others)
    for key, (own, default) in _ONLY_SLUICE.items():
        if settings.get(key) == own:
            result[key] = default
    return result


def submit_conf(
    conf: Mapping[str, str], user: Mapping[str, str], spark_version: str | None = None
) -> dict[str, str]:
    """Make the settings of a spark-submit command line from those of :func:`spark_conf`.

    They work even if a later option or the job itself replaces `spark.plugins` or `spark.jars`.

    Raises:
        SparkIntegrationError: A user's setting excludes Sluice.
    """
    conf = dict(conf)
    path = _local_path(conf[JARS]) if JARS in conf else None
    if path is not None:
        conf |= dict.fromkeys(_class_paths(supported_version(spark_version)), path)
    return added(conf, user)


def added(conf: Mapping[str, str], user: Mapping[str, str]) -> dict[str, str]:
    """Return ``conf`` with the user's entries of lists before its own.

    Of jars with one file name only that of ``conf`` stays: Spark distributes jars by file name.

    Raises:
        SparkIntegrationError: A user's setting excludes Sluice.
    """
    for key, allowed in _ONLY_SLUICE.items():
        value = user.get(key, allowed[0])
        if value not in allowed:
            raise SparkIntegrationError(
                f"{key} is set to another class than Sluice's",
                value=value,
                remedy=f"Remove {key}, or run this application without Sluice",
            )
    result = dict(conf)
    for key in conf.keys() & _LISTS.keys():
        separator = _LISTS[key]
        own = _entries(conf[key], separator)
        names = {_file_name(entry) for entry in own}
        theirs = _entries(user.get(key, ""), separator)
        result[key] = separator.join(
            [*(entry for entry in theirs if _file_name(entry) not in names), *own]
        )
    return result


def supported_version(version: str | None) -> tuple[int, int]:
    """Return the numbers of a version of Spark; None means the installed PySpark's.

    Raises:
        SparkIntegrationError: The plugin does not support it.
    """
    text = version or _installed_spark()
    match = _VERSION.match(text)
    number = (int(match[1]), int(match[2])) if match else (0, 0)
    if not OLDEST_SPARK <= number <= NEWEST_SPARK:
        raise SparkIntegrationError(
            "This version of Spark is not supported",
            value=text,
            limit="3.5, 4.0, 4.1, 4.2, 4.3",
            remedy="Use one of these, written like 4.3.0"
            if version
            else "Install one of these: pip install 'pyspark==4.3.*'",
        )
    return number


def _installed_spark() -> str:
    try:
        return importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        return ".".join(map(str, NEWEST_SPARK))


def _has(conf: Mapping[str, str], running: Mapping[str, str]) -> bool:
    """Return whether a running application uses Sluice with these endpoints."""
    plugins = f"{running.get(DEFAULT_PLUGINS, '')},{running.get(PLUGINS, '')}"
    return PLUGIN in _entries(plugins, ",") and (
        ENDPOINTS not in conf or conf[ENDPOINTS] == running.get(ENDPOINTS)
    )


def _entries(text: str, separator: str) -> list[str]:
    return [entry.strip() for entry in text.split(separator) if entry.strip()]


def _class_paths(version: tuple[int, int]) -> tuple[str, str]:
    """Return the class path settings of driver and executor that users rarely set."""
    return DEFAULT_CLASS_PATHS if version >= DEFAULT_CLASS_PATHS_SINCE else CLASS_PATHS


def _file_name(entry: str) -> str:
    """Return a jar's file name, or the whole entry if it is not a path."""
    return entry if entry.endswith("*") else entry.rpartition("/")[2]


def _jar_name(jar: str | Path | None) -> str:
    return JAR_NAME if jar is None else _file_name(str(jar))


def _local_path(jar: str) -> str | None:
    """Return a jar's path for a class path, or None for a jar that is fetched."""
    scheme, colon, path = jar.partition(":")
    if not colon:
        return jar
    return "/" + path.lstrip("/") if scheme in ("file", "local") else None


def _require_listable(jar: str, version: tuple[int, int]) -> None:
    """Refuse a path that Spark's lists would split.

    Raises:
        SparkIntegrationError: It has a comma, or on Spark 3.5 a colon.
    """
    separators = "," if version >= PLUGIN_SETS_THE_REST else ",:"
    if any(separator in jar for separator in separators):
        raise SparkIntegrationError(
            "Spark would split this path of the jar into several",
            value=jar,
            remedy=f"Put the jar where its path has none of: {' '.join(separators)}",
        )


def _endpoint_list(endpoints: str | Iterable[str]) -> str:
    listed = endpoints.split(",") if isinstance(endpoints, str) else list(endpoints)
    text = ",".join(_endpoint(each.strip()) for each in listed if each.strip())
    if not text:
        raise SparkIntegrationError(
            "No endpoint is given",
            value=endpoints,
            remedy="Write HOST:PORT, dns:NAME or unix:/PATH, several with commas between them",
        )
    return text


def _endpoint(text: str) -> str:
    """Check an endpoint as the plugin does.

    Raises:
        SparkIntegrationError: It is not HOST:PORT, dns:NAME[:PORT] or unix:/PATH.
    """
    try:
        check_form(text)
    except InvalidAddress as error:
        raise SparkIntegrationError(
            error.message, value=text, limit=error.limit, remedy=error.remedy
        ) from None
    return text
