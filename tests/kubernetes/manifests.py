"""Objects of the cluster itself."""

from __future__ import annotations

from typing import Any

from tests.kubernetes.network import DNS_ADDRESS

_NAMESPACE = "kube-system"
_DNS = {"k8s-app": "kube-dns"}
_COREFILE = """
.:53 {
  errors
  health
  kubernetes cluster.local {
    pods insecure
    ttl 5
  }
}
"""
"""Other names fail at once: no server outside the cluster is asked."""


def cluster_dns(image: str) -> list[dict[str, Any]]:
    """Return the objects that resolve the names of services and pods."""
    account = {"kind": "ServiceAccount", "name": "coredns", "namespace": _NAMESPACE}
    container = {
        "name": "coredns",
        "image": image,
        "imagePullPolicy": "Never",
        "args": ["-conf", "/etc/coredns/Corefile"],
        "volumeMounts": [{"name": "config", "mountPath": "/etc/coredns"}],
        "readinessProbe": {
            "httpGet": {"path": "/health", "port": 8080},
            "periodSeconds": 1,
        },
    }
    return [
        _named("v1", "ServiceAccount", "coredns"),
        _named("v1", "ConfigMap", "coredns", data={"Corefile": _COREFILE}),
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": "coredns"},
            "rules": [
                _readable("", "endpoints", "services", "pods", "namespaces"),
                _readable("discovery.k8s.io", "endpointslices"),
            ],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "coredns"},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": "coredns",
            },
            "subjects": [account],
        },
        _named(
            "apps/v1",
            "Deployment",
            "coredns",
            spec={
                "replicas": 1,
                "selector": {"matchLabels": _DNS},
                "template": {
                    "metadata": {"labels": _DNS},
                    "spec": {
                        "serviceAccountName": "coredns",
                        # There is only one, so it stays when its node is drained.
                        "nodeSelector": {"kubernetes.io/hostname": "node-1"},
                        "tolerations": [{"operator": "Exists"}],
                        "containers": [container],
                        "volumes": [{"name": "config", "configMap": {"name": "coredns"}}],
                    },
                },
            },
        ),
        _named(
            "v1",
            "Service",
            "kube-dns",
            spec={
                "clusterIP": DNS_ADDRESS,
                "selector": _DNS,
                "ports": [
                    {"name": "dns", "port": 53, "protocol": "UDP"},
                    {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
                ],
            },
        ),
    ]


def _readable(group: str, *resources: str) -> dict[str, Any]:
    return {"apiGroups": [group], "resources": resources, "verbs": ["list", "watch"]}


def _named(version: str, kind: str, name: str, **fields: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": _NAMESPACE}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **fields}
