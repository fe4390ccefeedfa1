"""`sluice spark-conf --kubernetes`: what pods get in both modes of the chart."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sluice.cli.main import main
from sluice.spark_integration.kubernetes import JAR, MODES, SOCKET

ROOT = Path(__file__).resolve().parents[2]
SERVICE = "dns:sluice.shuffle.svc:7337"


@pytest.fixture(autouse=True)
def no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["spark-conf", "--spark-version", "4.3.0", *arguments])


def conf(mode: str, *arguments: str, endpoints: str = SERVICE) -> dict[str, str]:
    """Return the settings that the command prints, which are plain options."""
    result = run("--kubernetes", mode, "--endpoints", endpoints, *arguments)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    words = result.stdout.split()
    assert set(words[::2]) == {"--conf"}
    pairs = [word.split("=", 1) for word in words[1::2]]
    assert len({key for key, _ in pairs}) == len(pairs)
    return dict((key, value) for key, value in pairs)


PLUGIN = {
    "spark.plugins.defaultList": "io.sluice.spark.SluicePlugin",
    "spark.jars": "local:///opt/sluice/sluice-spark.jar",
    "spark.driver.defaultExtraClassPath": "/opt/sluice/sluice-spark.jar",
    "spark.executor.defaultExtraClassPath": "/opt/sluice/sluice-spark.jar",
}


def test_executors_of_a_daemonset_use_the_socket_of_their_node() -> None:
    assert conf("daemonset") == {
        **PLUGIN,
        "spark.sluice.endpoints": f"unix:/run/sluice/taskmanager.sock,{SERVICE}",
        "spark.kubernetes.executor.volumes.hostPath.sluice.mount.path": "/run/sluice",
        "spark.kubernetes.executor.volumes.hostPath.sluice.options.path": "/run/sluice",
    }


def test_executors_of_a_statefulset_need_no_volume() -> None:
    assert conf("statefulset") == {**PLUGIN, "spark.sluice.endpoints": SERVICE}


def test_an_own_socket_replaces_that_of_the_chart() -> None:
    endpoints = f"unix:/run/sluice/*.sock,{SERVICE}"
    assert conf("daemonset", endpoints=endpoints)["spark.sluice.endpoints"] == endpoints


@pytest.mark.parametrize("mode", MODES)
def test_only_the_driver_gets_the_token(mode: str) -> None:
    made = conf(mode, "--token-secret", "sluice-token")
    assert made["spark.kubernetes.driver.secrets.sluice-token"] == "/run/sluice-token"
    assert made["spark.sluice.auth.tokenFile"] == "/run/sluice-token/token"
    assert not any("executor.secrets" in key for key in made)


@pytest.mark.parametrize("mode", MODES)
def test_tls_needs_the_authority_on_both_sides(mode: str) -> None:
    made = conf(mode, "--ca-secret", "sluice-ca")
    for role in ("driver", "executor"):
        assert made[f"spark.kubernetes.{role}.secrets.sluice-ca"] == "/run/sluice-tls"
    assert made["spark.sluice.ssl.enabled"] == "true"
    assert made["spark.sluice.ssl.caFile"] == "/run/sluice-tls/ca.crt"
    assert "spark.sluice.ssl.certChain" not in made
    # The authority of the chart signs one certificate only.
    assert made["spark.sluice.ssl.checkHostName"] == "false"


@pytest.mark.parametrize("mode", MODES)
def test_a_client_certificate_is_used(mode: str) -> None:
    made = conf(mode, "--tls-secret", "sluice-client-tls")
    assert made["spark.kubernetes.executor.secrets.sluice-client-tls"] == "/run/sluice-tls"
    assert made["spark.sluice.ssl.certChain"] == "/run/sluice-tls/tls.crt"
    assert made["spark.sluice.ssl.privateKey"] == "/run/sluice-tls/tls.key"
    # Certificates have names of pods, but a DaemonSet advertises addresses of nodes.
    checks = made.get("spark.sluice.ssl.checkHostName", "true")
    assert checks == ("false" if mode == "daemonset" else "true")


@pytest.mark.parametrize("mode", MODES)
def test_pod_template_and_local_directory(mode: str) -> None:
    made = conf(mode, "--pod-template", "executor.yaml", "--local-dir-size", "64Mi")
    assert made["spark.kubernetes.executor.podTemplateFile"] == "executor.yaml"
    volume = "spark.kubernetes.executor.volumes.emptyDir.spark-local-dir-1"
    assert made[f"{volume}.mount.path"] == "/var/lib/spark/local"
    assert made[f"{volume}.options.sizeLimit"] == "64Mi"


def test_another_jar_and_spark_3_5() -> None:
    assert conf("statefulset", "--jar", "local:///j/s.jar")["spark.jars"] == "local:///j/s.jar"
    made = conf("statefulset", "--spark-version", "3.5.0", "--jar", "/opt/sluice/sluice-spark.jar")
    assert made["spark.executor.extraClassPath"] == "/opt/sluice/sluice-spark.jar"
    assert made["spark.shuffle.manager"] == "io.sluice.spark.SluiceShuffleManager"


def test_own_options_are_kept() -> None:
    result = run("--kubernetes", "statefulset", "--endpoints", SERVICE, "--conf", "spark.x=1")
    assert result.stdout.split()[-1] == "spark.x=1"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--kubernetes", "daemonset"], "The driver needs an endpoint that it reaches over TCP"),
        (["--kubernetes", "daemonset", "--endpoints", SOCKET], "dns:sluice.NAMESPACE.svc:7337"),
        (["--kubernetes", "pod"], "is not one of 'daemonset', 'statefulset'"),
        (["--token-secret", "a"], "--token-secret needs --kubernetes"),
        (["--local-dir-size", "1Gi"], "--local-dir-size needs --kubernetes"),
        (
            ["--kubernetes", "statefulset", "--endpoints", SERVICE, "--token-secret", "A_b"],
            "This cannot be the name of a Secret (value A_b",
        ),
        (
            ["--kubernetes", "statefulset", "--endpoints", SERVICE, "--local-dir-size", "1 GB"],
            "This is not a size in Kubernetes notation (value 1 GB",
        ),
        (
            [
                *("--kubernetes", "statefulset", "--endpoints", SERVICE),
                *("--ca-secret", "a", "--tls-secret", "b"),
            ],
            "Both --tls-secret and --ca-secret are given (value a, b",
        ),
        (
            ["--kubernetes", "statefulset", "--endpoints", "dns:"],
            "The name of TaskManagers is not valid",
        ),
    ],
)
def test_wrong_options_are_refused_with_the_remedy(arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code in (1, 2)
    assert message in result.output


def test_the_jar_is_where_the_image_has_it() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    directory, _, name = JAR.removeprefix("local://").rpartition("/")
    assert f"jars/{name} {directory}/" in dockerfile
