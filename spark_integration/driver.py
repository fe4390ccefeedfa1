"""The Spark driver of this process: its settings and its JVM.

PySpark is used only if it is already imported or the caller passes a builder of it.
"""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING, Any, Final

from . import spark_home
from .errors import SparkIntegrationError
from .submit_command import SubmitCommand

if TYPE_CHECKING:
    from collections.abc import Mapping

_REUSE: Final = "spark.local.connect.reuse"
_LOCAL_CONNECT: Final = "SPARK_LOCAL_REMOTE"
"""The variable that PySpark sets while a server of Spark Connect runs in its process."""
_LOADERS_THAT_GROW: Final = ("MutableURLClassLoader", "ChildFirstURLClassLoader")
"""Class loaders that spark-submit makes for a driver."""


def running_settings() -> dict[str, str] | None:
    """Return the settings of this process's running SparkContext, or None."""
    context = _context_class()
    running = None if context is None else context._active_spark_context
    return None if running is None else dict(running.getConf().getAll())


def is_pyspark(builder: object) -> bool:
    """Return whether a builder is PySpark's, which starts Spark in this process."""
    return type(builder).__module__.startswith("pyspark.")


def connect_server(settings: Mapping[str, str]) -> str | None:
    """Return the running Spark Connect server that a session would use, or None.

    PySpark starts the server of ``remote("local[2]")`` in this process, with the builder's
    settings, unless the settings ask it to share a running server.
    """
    url = settings.get("spark.remote") or os.environ.get("SPARK_REMOTE", "")
    if url.startswith("sc://"):
        return url
    shared = settings.get(_REUSE) or os.environ.get("SPARK_LOCAL_CONNECT_REUSE", "")
    if url.startswith("local") and shared.lower() in ("1", "true"):
        return f"{url} with {_REUSE}"
    return None


def forget(builder: object, key: str) -> None:
    """Remove a setting from a builder of PySpark and from the JVM of this process.

    PySpark passes the settings of the first session to the JVM, where later sessions find them too.
    """
    getattr(builder, "_options", {}).pop(key, None)
    if is_jvm_running():
        _jvm().java.lang.System.clearProperty(key)


def stop() -> None:
    """Stop the running SparkContext of this process and its sessions."""
    from pyspark.sql import SparkSession

    context = _context_class()
    running = None if context is None else context._active_spark_context
    if _LOCAL_CONNECT in os.environ:
        # Stopping the client's session also ends the server's session in this process.
        from pyspark.sql.connect.session import SparkSession as ConnectSession

        session: Any = ConnectSession.getActiveSession() or ConnectSession._get_default_session()
    else:
        session = SparkSession.getActiveSession() or SparkSession._instantiatedSession
    if session is not None:
        session.stop()
    if running is not None:
        running.stop()


def is_jvm_running() -> bool:
    """Return whether the driver's JVM runs, so that its class path is fixed."""
    context = _context_class()
    return "PYSPARK_GATEWAY_PORT" in os.environ or (
        context is not None and context._gateway is not None
    )


def add_jar(path: str, name: str) -> None:
    """Add a jar to the class path of the running JVM unless it has the class ``name``.

    Raises:
        SparkIntegrationError: Its class loader does not accept jars.
    """
    jvm = _jvm()
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    if loader.getResource(f"{name.replace('.', '/')}.class") is not None:
        return
    if loader.getClass().getSimpleName() not in _LOADERS_THAT_GROW:
        raise SparkIntegrationError(
            "The driver is already running and cannot load another jar",
            value=path,
            remedy="Start it with: spark-submit $(sluice spark-conf)",
        )
    loader.addURL(jvm.java.io.File(path).toURI().toURL())


def require_java() -> None:
    """Check that PySpark will find a Java that the plugin runs on.

    Raises:
        SparkIntegrationError: It does not find Java, or finds one that is too old.
    """
    spark_home.require_java(os.environ, spark_home.conf_directory(os.environ))


def has_jars_option() -> bool:
    """Return whether PySpark starts its JVM with ``--jars``."""
    return not is_jvm_running() and _submit_arguments().has("--jars")


def user_settings() -> dict[str, str]:
    """Return the settings of ``spark-submit``'s command line and its defaults file."""
    if is_jvm_running():
        from pyspark import SparkConf

        return dict(SparkConf(_jvm=_jvm()).getAll())
    return _submit_arguments().settings(spark_home.conf_directory(os.environ))


def builder_settings(builder: object) -> dict[str, str]:
    """Return the settings of a PySpark session builder; others' are unknown."""
    options = getattr(builder, "_options", None)
    return {key: str(value) for key, value in options.items()} if options else {}


def _submit_arguments() -> SubmitCommand:
    """Return the arguments with which PySpark starts its JVM."""
    return SubmitCommand.parse(shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "")))


def _context_class() -> Any:
    """Return PySpark's SparkContext, or None when this process has not imported it."""
    return getattr(sys.modules.get("pyspark"), "SparkContext", None)


def _jvm() -> Any:
    from pyspark import SparkContext

    SparkContext._ensure_initialized()
    return SparkContext._jvm
