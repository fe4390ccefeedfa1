"""The settings that turn Sluice on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import sluice.spark_integration
from sluice.protocol.errors import SluiceError
from sluice.spark_integration import SparkIntegrationError, configure, driver, spark_conf
from sluice.spark_integration.conf import added, submit_conf

if TYPE_CHECKING:
    from pathlib import Path


PLUGIN = "io.sluice.spark.SluicePlugin"


class Builder:
    def __init__(self) -> None:
        self.settings: dict[str, str] = {}

    def config(self, key: str, value: str) -> Builder:
        self.settings[key] = value
        return self


class PySparkBuilder:
    """Keeps its settings where PySpark's builder keeps them."""

    def __init__(self, **settings: object) -> None:
        self._options = {key.replace("_", "."): value for key, value in settings.items()}

    def config(self, key: str, value: str) -> PySparkBuilder:
        self._options[key] = value
        return self


@pytest.fixture(autouse=True)
def nothing_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No settings of the user's; returns where spark-defaults.conf can be written."""
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    for variable in (
        *("PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT"),
        *("SPARK_REMOTE", "SPARK_LOCAL_CONNECT_REUSE"),
    ):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(driver, "_context_class", lambda: None)
    return tmp_path / "spark-defaults.conf"


@pytest.mark.parametrize("version", ["4.0.1", "4.1.0", "4.2.1", "4.3.0", "4.3.0.dev1"])
def test_spark_4_needs_two_settings(version: str) -> None:
    assert spark_conf(spark_version=version, jar="/opt/s.jar") == {
        "spark.plugins.defaultList": "io.sluice.spark.SluicePlugin",
        "spark.jars": "/opt/s.jar",
    }


def test_spark_3_5_needs_all_settings() -> None:
    assert spark_conf(spark_version="3.5.9", jar="/opt/s.jar") == {
        "spark.plugins.defaultList": "io.sluice.spark.SluicePlugin",
        "spark.driver.extraClassPath": "/opt/s.jar",
        "spark.executor.extraClassPath": "/opt/s.jar",
        "spark.shuffle.manager": "io.sluice.spark.SluiceShuffleManager",
        "spark.shuffle.sort.io.plugin.class": "io.sluice.spark.SluiceShuffleDataIO",
    }


@pytest.mark.parametrize(
    "endpoints", ["tm1:7337, unix:/run/s.sock,", ["tm1:7337", " unix:/run/s.sock"]]
)
def test_endpoints_are_joined_by_commas(endpoints: str | list[str]) -> None:
    conf = spark_conf(endpoints, "4.3.0", "/opt/s.jar")
    assert conf["spark.sluice.endpoints"] == "tm1:7337,unix:/run/s.sock"


@pytest.mark.parametrize("endpoints", ["", " , ", []])
def test_no_endpoint_is_an_error(endpoints: str | list[str]) -> None:
    with pytest.raises(SparkIntegrationError, match="Write HOST:PORT"):
        spark_conf(endpoints, "4.3.0", "/opt/s.jar")


@pytest.mark.parametrize(
    "endpoint",
    ["tm1", "tm1:", ":7337", "tm1:7337:9", "::1:7337", "tm1:0", "tm1:65536", "tm1:http", "tm1:-1",
     "tm1:7337,tm2", "unix:", "unix:run/s.sock", f"unix:/{'x' * 107}", "dns:", "dns:a:0",
     "dns:10.0.0.1", "dns:-a", "dns:a..b", f"dns:{'a' * 254}", "unix:/run/*/s", "unix:run/*"],
)  # fmt: skip
def test_an_endpoint_that_the_driver_would_refuse_is_refused_at_once(endpoint: str) -> None:
    with pytest.raises(SparkIntegrationError, match=r"Write .*(unix:/|HOST:PORT)"):
        spark_conf(endpoint, "4.3.0", "/opt/s.jar")


@pytest.mark.parametrize(
    "endpoint",
    ["[::1]:7337", "10.0.0.1:1", "unix:/run/{host}.sock", "dns:sluice", "dns:tm.data.svc.:7447",
     "unix:/run/sluice/*.sock"],
)  # fmt: skip
def test_an_endpoint_of_another_form_is_refused(endpoint: str) -> None:
    assert spark_conf(endpoint, "4.3.0", "/s.jar")["spark.sluice.endpoints"] == endpoint


@pytest.mark.parametrize(("version", "jar"), [("4.3.0", "/a,b/s.jar"), ("3.5.9", "/a:b/s.jar")])
def test_a_jar_path_with_a_separator_is_refused(version: str, jar: str) -> None:
    with pytest.raises(SparkIntegrationError, match="split this path of the jar into several"):
        spark_conf(spark_version=version, jar=jar)


def test_a_path_of_the_jar_with_a_blank_is_kept() -> None:
    assert spark_conf(spark_version="4.3.0", jar="/a b/s.jar")["spark.jars"] == "/a b/s.jar"


@pytest.mark.parametrize("version", ["3.4.1", "4.4.0", "5.0", "four"])
def test_unsupported_versions_are_named(version: str) -> None:
    with pytest.raises(SparkIntegrationError) as caught:
        spark_conf(spark_version=version, jar="/opt/s.jar")
    assert caught.value.value == version
    assert "4.3" in str(caught.value)
    assert isinstance(caught.value, SluiceError)


def test_configure_sets_each_and_returns_the_builder() -> None:
    builder = Builder()
    assert configure(builder, "tm:1", "4.3.0", "/opt/s.jar") is builder
    assert builder.settings == spark_conf("tm:1", "4.3.0", "/opt/s.jar")


def test_an_installed_spark_that_is_too_old_names_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: "3.4.4")
    with pytest.raises(SparkIntegrationError, match=r"value 3\.4\.4.*pip install 'pyspark=="):
        spark_conf(jar="/opt/s.jar")


def test_configure_keeps_the_builders_jars_and_plugins() -> None:
    builder = PySparkBuilder(spark_jars="/own.jar", spark_plugins="own.Plugin", spark_x=True)
    configure(builder, "tm:1", "4.3.0", "/opt/s.jar")
    expected = {
        "spark.jars": "/own.jar,/opt/s.jar",
        "spark.plugins": "own.Plugin",
        "spark.plugins.defaultList": PLUGIN,
        "spark.x": True,
        "spark.sluice.endpoints": "tm:1",
    }
    assert builder._options == expected
    configure(builder, "tm:1", "4.3.0", "/opt/s.jar")
    assert builder._options == expected


def test_configure_adds_to_spark_defaults(nothing_set: Path) -> None:
    nothing_set.write_text("spark.jars /own.jar\nspark.plugins.defaultList own.Plugin\n")
    builder = configure(Builder(), "tm:1", "4.3.0", "/opt/s.jar")
    assert builder.settings["spark.jars"] == "/own.jar,/opt/s.jar"
    assert builder.settings["spark.plugins.defaultList"] == f"own.Plugin,{PLUGIN}"


@pytest.mark.parametrize("version", ["3.5.9", "4.0.5", "4.3.0"])
def test_configure_survives_the_plugins_of_spark_connect(version: str) -> None:
    """PySpark replaces ``spark.plugins`` when it starts the server of a session."""
    builder = PySparkBuilder(spark_plugins=PLUGIN, spark_remote="local[2]")
    configure(builder, "tm:1", version, "/opt/s.jar")
    assert builder._options["spark.plugins.defaultList"] == PLUGIN


@pytest.mark.parametrize(
    ("options", "variables"),
    [
        ({"spark_remote": "sc://host:15002"}, {}),
        ({}, {"SPARK_REMOTE": "sc://host:15002"}),
        ({"spark_remote": "local[2]", "spark_local_connect_reuse": True}, {}),
        ({"spark_remote": "local[2]"}, {"SPARK_LOCAL_CONNECT_REUSE": "1"}),
    ],
)
def test_configure_refuses_a_connect_server_of_another_process(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, object], variables: dict[str, str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SparkIntegrationError, match=r"Start the server with: start-connect-server"):
        configure(PySparkBuilder(**options), "tm:1", "4.3.0", "/opt/s.jar")


@pytest.mark.parametrize("version", ["3.5.9", "4.0.5", "4.3.0"])
def test_configure_removes_its_own_settings(version: str) -> None:
    own = {"spark_jars": "/own.jar", "spark_driver_extraClassPath": "/own", "spark_x": "1"}
    builder = PySparkBuilder(**own)
    before = dict(builder._options)
    configure(builder, "tm:1", version, "/opt/s.jar")
    assert builder._options != before
    assert configure(builder, enabled=False, jar="/opt/s.jar") is builder
    assert builder._options == before


def test_plain_spark_overrides_settings_of_files(nothing_set: Path) -> None:
    nothing_set.write_text(
        f"spark.jars /own.jar,/opt/sluice-spark.jar\nspark.plugins own.Plugin,{PLUGIN}\n"
        "spark.shuffle.manager io.sluice.spark.SluiceShuffleManager\n"
    )
    assert configure(Builder(), enabled=False).settings == {
        "spark.jars": "/own.jar",
        "spark.plugins": "own.Plugin",
        "spark.shuffle.manager": "sort",
    }


def test_plain_spark_refuses_a_context_that_runs_with_sluice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(driver, "running_settings", lambda: {"spark.plugins.defaultList": PLUGIN})
    with pytest.raises(SparkIntegrationError, match=r"restart=True.* or restart the kernel"):
        configure(Builder(), enabled=False)
    monkeypatch.setattr(driver, "running_settings", lambda: {"spark.plugins": "own.Plugin"})
    assert configure(Builder(), enabled=False).settings == {}


def test_configure_adds_to_the_command_line_that_pyspark_uses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--jars '/a b/own.jar' pyspark-shell")
    builder = configure(Builder(), "tm:1", "4.3.0", "/opt/s.jar")
    assert builder.settings["spark.jars"] == "/a b/own.jar,/opt/s.jar"
    # --jars alone decides on the class path of the driver.
    assert builder.settings["spark.driver.defaultExtraClassPath"] == "/opt/s.jar"


def test_configure_adds_to_class_paths_on_spark_3_5() -> None:
    builder = PySparkBuilder(spark_driver_extraClassPath="/own:/more")
    configure(builder, "tm:1", "3.5.9", "/opt/s.jar")
    assert builder._options["spark.driver.extraClassPath"] == "/own:/more:/opt/s.jar"
    assert builder._options["spark.executor.extraClassPath"] == "/opt/s.jar"


@pytest.mark.parametrize("key", ["spark.shuffle.manager", "spark.shuffle.sort.io.plugin.class"])
def test_configure_refuses_another_shuffle_manager(key: str) -> None:
    builder = PySparkBuilder().config(key, "org.other.Class")
    with pytest.raises(SparkIntegrationError, match=f"{key} is set .*value org.other.Class"):
        configure(builder, "tm:1", "4.3.0", "/opt/s.jar")
    configure(PySparkBuilder().config("spark.shuffle.manager", "sort"), "tm:1", "3.5.9", "/s.jar")


@pytest.mark.parametrize(
    ("running", "refused"),
    [
        ({}, True),
        ({"spark.plugins": PLUGIN, "spark.sluice.endpoints": "other:1"}, True),
        ({"spark.plugins": f"own.Plugin,{PLUGIN}", "spark.sluice.endpoints": "tm:1"}, False),
        ({"spark.plugins.defaultList": PLUGIN, "spark.sluice.endpoints": "tm:1"}, False),
    ],
)
def test_configure_refuses_a_context_that_runs_without_sluice(
    monkeypatch: pytest.MonkeyPatch, running: dict[str, str], refused: bool
) -> None:
    monkeypatch.setattr(driver, "running_settings", lambda: running)
    if refused:
        with pytest.raises(SparkIntegrationError, match="with restart=True"):
            configure(Builder(), "tm:1", "4.3.0", "/opt/s.jar")
    else:
        configure(Builder(), "tm:1", "4.3.0", "/opt/s.jar")


def test_our_jar_wins_over_one_of_the_same_file_name() -> None:
    user = {"spark.jars": "file:///old/sluice.jar,/own.jar"}
    assert added({"spark.jars": "/new/sluice.jar"}, user) == {
        "spark.jars": "/own.jar,/new/sluice.jar"
    }


@pytest.mark.parametrize(
    ("version", "class_path"),
    [("4.3.0", "spark.driver.defaultExtraClassPath"), ("4.0.1", "spark.driver.extraClassPath")],
)
def test_a_command_line_sets_keys_that_later_options_keep(version: str, class_path: str) -> None:
    conf = submit_conf(spark_conf("tm:1", version, "/opt/s.jar"), {}, version)
    assert conf["spark.plugins.defaultList"] == PLUGIN
    assert "spark.plugins" not in conf
    assert conf["spark.jars"] == conf[class_path] == "/opt/s.jar"


@pytest.mark.parametrize(
    ("jar", "class_path"),
    [
        ("local:///opt/s.jar", "/opt/s.jar"),
        ("file:/opt/s.jar", "/opt/s.jar"),
        ("s3a://b/s.jar", None),
    ],
)
def test_a_fetched_jar_is_not_put_on_a_class_path(jar: str, class_path: str | None) -> None:
    conf = submit_conf(spark_conf("tm:1", "4.3.0", jar), {}, "4.3.0")
    assert conf["spark.jars"] == jar
    assert conf.get("spark.executor.defaultExtraClassPath") == class_path


def test_a_missing_jar_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sluice.spark_integration.conf, "__file__", str(tmp_path / "conf.py"))
    with pytest.raises(SparkIntegrationError, match="make jar"):
        sluice.spark_integration.jar_path()
    (tmp_path / "jars").mkdir()
    jar = tmp_path / "jars" / "sluice-spark.jar"
    jar.touch()
    assert sluice.spark_integration.jar_path() == jar


def test_configure_reports_missing_java_before_pyspark_starts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sql = pytest.importorskip("pyspark.sql")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SparkIntegrationError, match="JAVA_HOME is not the directory of a Java"):
        configure(sql.SparkSession.builder, "tm:1", "4.3.0", "/opt/s.jar")
