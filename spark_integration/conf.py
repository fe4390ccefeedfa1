"""Settings that make a Spark application shuffle through TaskManagers (docs/guide/spark.md)."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from sluice.protocol.errors import ErrorCode, SluiceError

if TYPE_CHECKING:
    from collections.abc import Iterable

PLUGIN: Final = "io.sluice.spark.SluicePlugin"
SHUFFLE_MANAGER: Final = "io.sluice.spark.SluiceShuffleManager"
DATA_IO: Final = "io.sluice.spark.SluiceShuffleDataIO"

OLDEST_SPARK: Final = (3, 5)
NEWEST_SPARK: Final = (4, 3)
PLUGIN_SETS_THE_REST: Final = (4, 0)
"""From this version on plugins are loaded before the shuffle manager and `spark.jars` before it."""

_VERSION = re.compile(r"(\d+)\.(\d+)")


class SparkIntegrationError(SluiceError):
    """Spark cannot be set up for Sluice."""

    code = ErrorCode.CONFIGURATION


class SessionBuilder(Protocol):
    """What :func:`configure` needs of ``SparkSession.builder``."""

    def config(self, key: str, value: str) -> object:
        """Set one setting."""


Builder = TypeVar("Builder", bound=SessionBuilder)


def jar_path() -> Path:
    """Return the path of the plugin's jar.

    Raises:
        SparkIntegrationError: The jar is not there (a checkout in which it was not built).
    """
    jar = Path(__file__).resolve().parent / "jars" / "sluice-spark.jar"
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
        endpoints: Where TaskManagers listen, ``HOST:PORT`` or ``unix:/PATH`` each, as a comma list
            or one by one. None leaves the plugin's default, 127.0.0.1:7337.
        spark_version: Version of the Spark that will run the application, such as ``4.3.0``. None:
            that of the installed PySpark, else the newest supported.
        jar: Path of the jar as the application's hosts see it. None: this package's own.

    Raises:
        SparkIntegrationError: An unsupported version, an empty endpoint list, or no jar.
    """
    version = _supported(spark_version or _installed_spark())
    path = str(jar) if jar is not None else str(jar_path())
    conf = {"spark.plugins": PLUGIN}
    if version >= PLUGIN_SETS_THE_REST:
        conf["spark.jars"] = path
    else:
        # 3.5 makes the shuffle manager before plugins and before it fetches spark.jars.
        conf |= {
            "spark.driver.extraClassPath": path,
            "spark.executor.extraClassPath": path,
            "spark.shuffle.manager": SHUFFLE_MANAGER,
            "spark.shuffle.sort.io.plugin.class": DATA_IO,
            "spark.dynamicAllocation.shuffleTracking.enabled": "false",
        }
    if endpoints is not None:
        listed = endpoints.split(",") if isinstance(endpoints, str) else list(endpoints)
        text = ",".join(endpoint.strip() for endpoint in listed if endpoint.strip())
        if not text:
            raise SparkIntegrationError(
                "No endpoint is given",
                value=endpoints,
                remedy="Write HOST:PORT or unix:/PATH, several with commas between them",
            )
        conf["spark.sluice.endpoints"] = text
    return conf


def configure(
    builder: Builder,
    endpoints: str | Iterable[str] | None = None,
    spark_version: str | None = None,
    jar: str | Path | None = None,
) -> Builder:
    """Turn Sluice on for a session that is about to be built; returns the same builder.

    Arguments and errors are those of :func:`spark_conf`. Must come before ``getOrCreate()`` makes
    the first session of the process: a running SparkContext cannot change its shuffle manager.
    """
    for key, value in spark_conf(endpoints, spark_version, jar).items():
        builder.config(key, value)
    return builder


def _installed_spark() -> str:
    try:
        return importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        return ".".join(map(str, NEWEST_SPARK))


def _supported(version: str) -> tuple[int, int]:
    match = _VERSION.match(version)
    number = (int(match[1]), int(match[2])) if match else (0, 0)
    if not OLDEST_SPARK <= number <= NEWEST_SPARK:
        raise SparkIntegrationError(
            "This version of Spark is not supported",
            value=version,
            limit="3.5, 4.0, 4.1, 4.2, 4.3",
            remedy="Use one of these, written like 4.3.0",
        )
    return number
