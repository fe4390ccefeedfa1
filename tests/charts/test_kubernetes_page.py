"""The page about Kubernetes agrees with the command, the pod templates and the chart."""

from __future__ import annotations

import re
import shlex
import textwrap
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from click.testing import CliRunner

from sluice.cli.main import main
from tests.charts.rig import CHART, conform, needs_helm, render
from tests.docs.examples import ROOT

PAGE = (ROOT / "docs" / "guide" / "kubernetes.md").read_text(encoding="utf-8")
TEMPLATES = ROOT / "deploy" / "kubernetes"
MODES = ("daemonset", "statefulset")
BLOCK = re.compile(r"^( *)```([a-z]+)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[str]:
    return [textwrap.dedent(text) for _, name, text in BLOCK.findall(PAGE) if name == language]


def documents() -> list[dict[str, Any]]:
    return [yaml.safe_load(text) for text in blocks("yaml")]


def commands(words: str) -> list[list[str]]:
    """Return the commands of the page that begin with these words, without what encloses them."""
    text = "\n".join(blocks("sh")).replace("\\\n", " ")
    found = re.findall(rf"{words}[^)\n]*", text)
    return [shlex.split(each) for each in found if "..." not in each]


def printed(arguments: list[str]) -> dict[str, str]:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    pairs = shlex.split(result.stdout)[1::2]
    return dict(pair.split("=", 1) for pair in pairs)


@pytest.fixture(autouse=True)
def no_settings(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))


def spark_conf_of(mode: str) -> dict[str, str]:
    """Return the settings that the first command of the page for a mode prints."""
    command = next(each for each in commands("sluice spark-conf") if mode in each)
    return printed(command[1:])


@pytest.mark.parametrize("mode", MODES)
def test_the_settings_are_those_that_the_command_prints(mode: str):
    listed = [
        dict(line.split(None, 1) for line in text.splitlines() if line)
        for text in blocks("properties")
    ]
    assert listed[MODES.index(mode)] == spark_conf_of(mode)
    assert len(listed) == 2


def test_every_command_of_the_page_is_accepted():
    found = commands("sluice spark-conf")
    assert len(found) == 3
    for each in found:
        printed(each[1:])


@pytest.mark.parametrize("mode", MODES)
def test_the_pod_template_is_that_of_the_repository(mode: str):
    text = (TEMPLATES / f"executor-{mode}.yaml").read_text(encoding="utf-8")
    assert text in blocks("yaml")


@needs_helm
@pytest.mark.parametrize("mode", MODES)
def test_kubernetes_accepts_the_pod_template(mode: str):
    template = yaml.safe_load((TEMPLATES / f"executor-{mode}.yaml").read_text(encoding="utf-8"))
    template["metadata"] = {"name": "executor"}  # Spark adds both
    template["spec"]["containers"][0]["image"] = "spark"
    assert conform(yaml.safe_dump(template)) == ""


@needs_helm
def test_executors_have_the_group_of_the_taskmanager():
    pod = render({}).pod
    assert pod["securityContext"]["runAsGroup"] == 10001
    for document in documents():
        text = yaml.safe_dump(document)
        if "supplementalGroups" in text:
            assert "supplementalGroups:\n" in text
            assert "- 10001\n" in text
    mounts = render({}).mounts()
    volume = "spark.kubernetes.executor.volumes.hostPath.sluice"
    conf = spark_conf_of("daemonset")
    assert (
        mounts[conf[f"{volume}.mount.path"]]["hostPath"]["path"] == conf[f"{volume}.options.path"]
    )


@needs_helm
def test_the_endpoint_is_the_service_of_the_chart():
    made = render({"mode": "StatefulSet"})
    toml = made.toml.replace("shuffle", "sluice")  # the namespace of the page
    endpoint = spark_conf_of("statefulset")["spark.sluice.endpoints"]
    assert f'taskmanagers = ["{endpoint}"]' in toml


@needs_helm
def test_the_authority_is_where_the_page_says():
    secret = render({"mode": "StatefulSet"}).one("Secret", "sluice-ca")
    assert list(secret["data"]) == ["ca.crt"]
    assert (
        r"kubectl get secret sluice-ca --namespace sluice --output jsonpath='{.data.ca\.crt}'"
        in (PAGE)
    )


@pytest.mark.parametrize("group", ["sparkoperator.k8s.io/v1beta2", "spark.apache.org/v1"])
def test_applications_of_operators_have_the_settings_of_the_command(group: str):
    (application,) = [each for each in documents() if each["apiVersion"] == group]
    expected = spark_conf_of("daemonset")
    of_the_template = {"spark.kubernetes.executor.podTemplateFile"}
    own = {
        key: value
        for key, value in application["spec"]["sparkConf"].items()
        if not key.startswith(("spark.kubernetes.container", "spark.kubernetes.authenticate"))
    }
    if group.startswith("sparkoperator"):
        # Its fields take the place of Spark's settings for volumes and Secrets.
        of_the_template |= {key for key in expected if key.startswith("spark.kubernetes.")}
    assert own == {key: value for key, value in expected.items() if key not in of_the_template}


@needs_helm
def test_the_operator_of_kubeflow_accepts_its_application():
    (application,) = [
        each for each in documents() if each["apiVersion"].startswith("sparkoperator")
    ]
    assert conform(yaml.safe_dump(application)) == ""
    application["spec"]["executor"]["podSecurity"] = {}
    assert "additional properties 'podSecurity' not allowed" in conform(yaml.safe_dump(application))


def test_the_values_of_the_page_are_values_of_the_chart():
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    named = set(re.findall(r"--set ([a-zA-Z.]+)=", PAGE))
    named |= {"drain.migrate", "drain.bytesPerSecond", "storage.size", "tls.source", "zoneLabel"}
    for path in named:
        value: Any = values
        for name in path.split("."):
            value = value[name]
