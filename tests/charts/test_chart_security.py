"""Secrets, certificates, network policies and the pod's rights."""

from __future__ import annotations

import base64
import copy
import ipaddress
import re

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from sluice.protocol.identity import parse_secret
from sluice.shuffle.taskmanager.config.taskmanager_config import TaskManagerConfig, load
from tests.charts.branches import ISSUER
from tests.charts.pod_security import violations
from tests.charts.rig import Rendered, Values, needs_helm, objects_of, refusal, render, template

pytestmark = needs_helm

MODES = ("DaemonSet", "StatefulSet")
each_mode = pytest.mark.parametrize("mode", MODES)


def config_of(objects: Rendered, tmp_path) -> TaskManagerConfig:
    file = tmp_path / "taskmanager.toml"
    file.write_text(objects.toml, encoding="utf-8")
    return load(file, {}, {})


@each_mode
def test_the_chart_makes_a_cluster_secret(mode: str, tmp_path):
    objects = render({"mode": mode})
    secret = objects.one("Secret", "sluice-cluster-secret")
    (text,) = secret["data"].values()
    assert len(parse_secret(base64.b64decode(text).decode())) == 32
    assert secret["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    volume = objects.mounts()["/run/sluice-secret"]["secret"]
    assert volume == {"secretName": "sluice-cluster-secret", "defaultMode": 0o440}
    files = config_of(objects, tmp_path).auth.cluster_secret_files
    assert [str(each) for each in files] == ["/run/sluice-secret/secret"]
    # For `sluice token create` and `sluice drain` in the container.
    assert objects.environment["SLUICE_CLUSTER_SECRET_FILES"] == "/run/sluice-secret/secret"


def test_two_installations_have_different_secrets():
    made = [Rendered(objects_of(template({}).stdout)) for _ in range(2)]
    first, second = (each.one("Secret", "sluice-cluster-secret")["data"] for each in made)
    assert first.keys() == second.keys()
    assert first != second


@each_mode
def test_a_supplied_secret_is_used(mode: str, tmp_path):
    auth = {"existingSecret": "mine", "key": "cluster.secret"}
    objects = render({"mode": mode, "auth": auth, "tls": {"source": "none"}})
    assert "Secret" not in objects.kinds()
    assert objects.mounts()["/run/sluice-secret"]["secret"]["secretName"] == "mine"
    files = config_of(objects, tmp_path).auth.cluster_secret_files
    assert [str(each) for each in files] == ["/run/sluice-secret/cluster.secret"]


@each_mode
def test_anonymous_access_needs_no_secret(mode: str, tmp_path):
    objects = render({"mode": mode, "auth": {"allowAnonymous": True}, "tls": {"source": "none"}})
    assert "Secret" not in objects.kinds()
    assert "/run/sluice-secret" not in objects.mounts()
    assert "SLUICE_CLUSTER_SECRET_FILES" not in objects.environment
    config = config_of(objects, tmp_path)
    assert config.auth.allow_anonymous
    # So `preStop` may still drain.
    assert str(config.http.http_socket_path) == "/tmp/sluice/http.sock"
    assert objects.environment["SLUICE_HTTP_SOCKET_PATH"] == "/tmp/sluice/http.sock"


@pytest.mark.parametrize(
    ("values", "on"),
    [
        ({"mode": "DaemonSet"}, False),
        ({"mode": "StatefulSet"}, True),
        ({"mode": "StatefulSet", "tls": {"source": "none"}}, False),
        ({"mode": "DaemonSet", "tls": {"source": "generated"}}, True),
        ({"mode": "StatefulSet", "tls": ISSUER}, True),
        ({"mode": "StatefulSet", "tls": {"source": "secret", "secretName": "c"}}, True),
    ],
)
def test_tls_is_on_where_data_crosses_the_network(values: Values, on: bool, tmp_path):
    objects = render(values)
    transport = config_of(objects, tmp_path).transport
    assert transport.tls_enabled is on
    assert ("/run/sluice-tls" in objects.mounts()) is on
    if on:
        assert str(transport.tls_certificate_file) == "/run/sluice-tls/tls.crt"
        assert str(transport.tls_key_file) == "/run/sluice-tls/tls.key"
        assert str(transport.tls_ca_file) == "/run/sluice-tls/ca.crt"


def test_the_chart_makes_a_certificate_with_the_names_of_the_pods():
    tls = {"source": "generated", "extraNames": ["tm.example"], "days": 30}
    objects = render({"mode": "StatefulSet", "tls": tls, "clusterDomain": "k8s.example"})
    secret = objects.one("Secret", "sluice-tls")
    assert secret["type"] == "kubernetes.io/tls"
    data = {name: base64.b64decode(text) for name, text in secret["data"].items()}
    certificate = x509.load_pem_x509_certificate(data["tls.crt"])
    authority = x509.load_pem_x509_certificate(data["ca.crt"])
    certificate.verify_directly_issued_by(authority)
    key = serialization.load_pem_private_key(data["tls.key"], None)
    assert isinstance(key, rsa.RSAPrivateKey)
    assert key.public_key() == certificate.public_key()
    assert certificate.public_key() != authority.public_key()
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert set(names.get_values_for_type(x509.DNSName)) == {
        "sluice.shuffle.svc",
        "*.sluice.shuffle.svc",
        "sluice.shuffle.svc.k8s.example",
        "*.sluice.shuffle.svc.k8s.example",
        "localhost",
        "tm.example",
    }
    assert names.get_values_for_type(x509.IPAddress) == [ipaddress.ip_address("127.0.0.1")]
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert {each.dotted_string for each in usage} == {"1.3.6.1.5.5.7.3.1", "1.3.6.1.5.5.7.3.2"}
    lifetime = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    assert lifetime.days == 30
    # Applications get the authority, and no key.
    assert objects.one("Secret", "sluice-ca")["data"] == {"ca.crt": secret["data"]["ca.crt"]}
    assert "ca.key" not in data


def test_cert_manager_gets_a_certificate_for_taskmanagers_and_one_for_clients():
    objects = render({"mode": "StatefulSet", "tls": ISSUER})
    own = objects.one("Certificate", "sluice-tls")["spec"]
    assert own["secretName"] == "sluice-tls"
    assert "*.sluice.shuffle.svc" in own["dnsNames"]
    assert {"server auth", "client auth"} <= set(own["usages"])
    client = objects.one("Certificate", "sluice-client-tls")["spec"]
    assert client["secretName"] == "sluice-client-tls"
    assert client["usages"] == ["digital signature", "client auth"]
    assert "dnsNames" not in client
    for each in (own, client):
        assert each["issuerRef"] == {
            "name": "authority",
            "kind": "Issuer",
            "group": "cert-manager.io",
        }
        assert each["privateKey"]["encoding"] == "PKCS8"  # what Java reads
    tls = {**ISSUER, "requireClientCertificate": False}
    assert render({"mode": "StatefulSet", "tls": tls}).kinds().count("Certificate") == 1


@pytest.mark.parametrize(
    ("values", "checks", "requires"),
    [
        ({"mode": "StatefulSet"}, False, False),
        ({"mode": "StatefulSet", "tls": {"checkHostName": True}}, True, False),
        ({"mode": "DaemonSet", "tls": {"source": "generated"}}, False, False),
        ({"mode": "StatefulSet", "tls": ISSUER}, True, True),
        ({"mode": "DaemonSet", "tls": ISSUER}, False, True),
        ({"mode": "DaemonSet", "tls": {**ISSUER, "checkHostName": True}}, True, True),
        ({"mode": "DaemonSet", "tls": {**ISSUER, "checkHostName": "true"}}, True, True),
        ({"mode": "StatefulSet", "tls": {**ISSUER, "checkHostName": False}}, False, True),
        ({"mode": "StatefulSet", "tls": {**ISSUER, "checkHostName": "false"}}, False, True),
        (
            {"mode": "StatefulSet", "tls": {**ISSUER, "requireClientCertificate": False}},
            True,
            False,
        ),
    ],
)
def test_what_tls_checks(values: Values, checks: bool, requires: bool, tmp_path):
    transport = config_of(render(values), tmp_path).transport
    assert transport.tls_check_host_name is checks
    assert transport.tls_require_client_certificate is requires


def policy_of(**policy: object) -> list[Values]:
    values = {"mode": "StatefulSet", "networkPolicy": {"enabled": True, **policy}}
    spec = render(values).one("NetworkPolicy")["spec"]
    assert spec["policyTypes"] == ["Ingress"]
    found: list[Values] = spec["ingress"]
    return found


OWN_PODS = {
    "podSelector": {
        "matchLabels": {
            "app.kubernetes.io/component": "taskmanager",
            "app.kubernetes.io/instance": "sluice",
            "app.kubernetes.io/name": "sluice",
        }
    }
}
SPARK_PODS = {
    "matchExpressions": [{"key": "spark-role", "operator": "In", "values": ["driver", "executor"]}]
}


def test_only_spark_and_taskmanagers_reach_the_data_port():
    data, _ = policy_of()
    assert data["from"] == [
        OWN_PODS,
        {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "shuffle"}},
            "podSelector": SPARK_PODS,
        },
    ]
    assert data["ports"] == [{"port": 7337, "protocol": "TCP"}]


def test_only_chosen_namespaces_reach_the_data_port():
    data, _ = policy_of(
        clientNamespaces=["etl", "ml"], extraClients=[{"ipBlock": {"cidr": "::/0"}}]
    )
    _, *clients, extra = data["from"]
    assert [
        each["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"] for each in clients
    ] == ["etl", "ml"]
    assert all(each["podSelector"] == SPARK_PODS for each in clients)
    assert extra == {"ipBlock": {"cidr": "::/0"}}


def test_only_prometheus_reaches_the_http_port():
    _, http = policy_of()
    assert http["from"] == [
        {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}},
            "podSelector": {"matchLabels": {"app.kubernetes.io/name": "prometheus"}},
        }
    ]
    assert http["ports"] == [{"port": 7338, "protocol": "TCP"}]
    assert len(policy_of(prometheus=[])) == 1
    _, http = policy_of(prometheus=[], clusterPage=True)
    assert http["from"] == [OWN_PODS]


def test_a_policy_that_would_do_nothing_is_refused():
    assert "hostNetwork=false" in refusal({"networkPolicy": {"enabled": True}})


@each_mode
def test_no_pod_gets_a_token_of_the_api(mode: str):
    objects = render({"mode": mode})
    assert objects.pod["automountServiceAccountToken"] is False
    assert objects.one("ServiceAccount")["automountServiceAccountToken"] is False
    assert objects.pod["serviceAccountName"] == "sluice"


@each_mode
@pytest.mark.parametrize(
    ("account", "name"),
    [
        ({"create": False}, "default"),
        ({"create": False, "name": "mine"}, "mine"),
        ({"name": "other"}, "other"),
    ],
)
def test_the_account_of_the_pods(mode: str, account: Values, name: str):
    objects = render({"mode": mode, "serviceAccount": account})
    assert objects.pod["serviceAccountName"] == name
    assert ("ServiceAccount" in objects.kinds()) is account.get("create", True)


def test_a_daemonset_needs_only_the_node_beyond_the_restricted_standard():
    """Its init container changes owners; the TaskManager has no right of root."""
    pod = copy.deepcopy(render({}).pod)
    pod["initContainers"] = []
    assert violations(pod) == [
        "hostNetwork is true",
        "the volume data-0 is of the kind hostPath",
        "the volume run is of the kind hostPath",
        "the volume memory is of the kind hostPath",
    ]


SECURITY = ("securityContext",)
VIOLATIONS = {
    "hostNetwork is true": lambda pod, own: pod.update(hostNetwork=True),
    "hostPID is true": lambda pod, own: pod.update(hostPID=True),
    "hostIPC is true": lambda pod, own: pod.update(hostIPC=True),
    "hostProcess is true": lambda pod, own: pod["securityContext"].update(
        windowsOptions={"hostProcess": True}
    ),
    "of the kind hostPath": lambda pod, own: pod["volumes"].append({"name": "a", "hostPath": {}}),
    "sysctl kernel.x": lambda pod, own: pod["securityContext"].update(
        sysctls=[{"name": "kernel.x"}]
    ),
    "privileged is true": lambda pod, own: own["securityContext"].update(privileged=True),
    "allowPrivilegeEscalation": lambda pod, own: own["securityContext"].pop(
        "allowPrivilegeEscalation"
    ),
    "not all capabilities": lambda pod, own: own["securityContext"].pop("capabilities"),
    "a capability is added": lambda pod, own: own["securityContext"]["capabilities"].update(
        add=["CHOWN"]
    ),
    "runAsNonRoot is not true": lambda pod, own: pod["securityContext"].pop("runAsNonRoot"),
    "runAsUser is 0": lambda pod, own: own["securityContext"].update(runAsUser=0),
    "seccompProfile is neither": lambda pod, own: pod["securityContext"].pop("seccompProfile"),
    "seccompProfile is Unconfined": lambda pod, own: own["securityContext"].update(
        seccompProfile={"type": "Unconfined"}
    ),
    "procMount": lambda pod, own: own["securityContext"].update(procMount="Unmasked"),
    "hostPort": lambda pod, own: own["ports"][0].update(hostPort=1),
    "livenessProbe has a host": lambda pod, own: own["livenessProbe"]["httpGet"].update(host="a"),
    "preStop has a host": lambda pod, own: own["lifecycle"].update(
        preStop={"httpGet": {"host": "a"}}
    ),
    "appArmorProfile": lambda pod, own: own["securityContext"].update(
        appArmorProfile={"type": "Unconfined"}
    ),
    "SELinux type": lambda pod, own: own["securityContext"].update(
        seLinuxOptions={"type": "spc_t"}
    ),
    "SELinux user": lambda pod, own: own["securityContext"].update(seLinuxOptions={"user": "u"}),
}


@pytest.mark.parametrize("rule", VIOLATIONS)
def test_the_check_of_the_standard_finds_each_violation(rule: str):
    pod = copy.deepcopy(render({"mode": "StatefulSet"}).pod)
    assert violations(pod) == []
    VIOLATIONS[rule](pod, pod["containers"][0])
    assert re.search(rule, "\n".join(violations(pod)))


@pytest.mark.parametrize("kind", ["initContainers", "ephemeralContainers"])
def test_the_check_of_the_standard_sees_all_containers(kind: str):
    pod = copy.deepcopy(render({"mode": "StatefulSet"}).pod)
    pod[kind] = [{"name": "more"}]
    assert violations(pod) == [
        "more: allowPrivilegeEscalation is not false",
        "more: not all capabilities are dropped",
    ]
