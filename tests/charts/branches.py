"""Every branch of the chart: each value that adds, removes or replaces something, in both modes."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Final

from tests.charts.rig import MONITORING, Branch, Values

ISSUER: Final[Values] = {"source": "certManager", "issuer": {"name": "authority"}}

COMMON: Final[dict[str, Values]] = {
    "defaults": {},
    "names": {"nameOverride": "shuffler", "fullnameOverride": "tm", "commonLabels": {"team": "a"}},
    "annotations": {
        "commonAnnotations": {"owner": "a"},
        "podAnnotations": {"b": "c"},
        "podLabels": {"d": "e"},
        "service": {"annotations": {"f": "g"}},
        "workload": {"annotations": {"h": "i"}},
        "serviceAccount": {"annotations": {"j": "k"}},
    },
    "image by tag": {
        "image": {"registry": "registry.example", "tag": "1", "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "registry"}],
    },
    "image by digest": {"image": {"digest": "sha256:" + "0" * 64}},
    "large": {"memory": "64Gi", "processes": 4, "cpu": {"request": 4, "limit": "8"}},
    "smallest": {"memory": "512Mi", "storage": {"size": "1Gi"}},
    "memory in bytes": {"memory": 4294967296},
    "memory tier": {"memoryTier": True},
    "no memory tier": {"memoryTier": False},
    "zone": {"zone": "z1"},
    "zone of a label": {"zoneLabel": "topology.kubernetes.io/zone"},
    "settings": {
        "config": {
            "log_format": "json",
            "storage": {"journal_sync": "commit", "memory_tier_bytes": "64 MiB"},
            "quotas": {"quota_overrides": ["alice: channels = 10"]},
            "transport": {"max_connections": 4096, "keepalive_seconds": 7.5},
            "auth": {"peer_networks": ["10.0.0.0/8"]},
        }
    },
    "settings removed": {"config": {"cluster": {"taskmanagers": None}}},
    "remote tier": {"config": {"storage": {"remote": "s3://bucket/prefix"}}},
    "own ports": {"ports": {"data": 9000, "http": 9100}},
    "secret supplied": {"auth": {"existingSecret": "mine", "key": "cluster.secret"}},
    "anonymous": {"auth": {"allowAnonymous": True}},
    "TLS off": {"tls": {"source": "none"}},
    "TLS generated": {"tls": {"source": "generated", "extraNames": ["tm.example"]}},
    "TLS of a secret": {"tls": {"source": "secret", "secretName": "certificates"}},
    "TLS of cert-manager": {"tls": {**ISSUER, "checkHostName": True}},
    "TLS without client certificates": {"tls": {**ISSUER, "requireClientCertificate": False}},
    "drain always": {"drain": {"migrate": "always", "bytesPerSecond": "1Gi"}},
    "drain never": {"drain": {"migrate": "never"}},
    "drain when cordoned": {"drain": {"migrate": "whenCordoned"}},
    "grace period": {"drain": {"terminationGracePeriodSeconds": 77, "timeoutSeconds": 5}},
    "pods": {
        "priorityClassName": "high",
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "spot", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "extraEnv": [{"name": "AWS_REGION", "value": "eu-1"}],
        "extraVolumes": [{"name": "more", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
        "workload": {"updateStrategy": {"type": "OnDelete"}},
        "startupProbe": {"timeoutSeconds": 60},
    },
    "account supplied": {"serviceAccount": {"create": False, "name": "mine"}},
    "account of the namespace": {"serviceAccount": {"create": False}},
    "no disruption budget": {"podDisruptionBudget": {"enabled": False}},
    "disruption budget in percent": {"podDisruptionBudget": {"maxUnavailable": "25%"}},
    "monitoring forced": {
        "monitoring": {
            "labels": {"release": "prometheus"},
            "podMonitor": {"create": "always", "tokenSecret": "token"},
            "prometheusRule": {"create": "always"},
            "dashboards": {"create": "always"},
        }
    },
    "extra objects": {
        "extraObjects": [
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}},
            "apiVersion: v1\nkind: Secret\nmetadata: {name: '{{ .Release.Name }}-b'}\n",
        ]
    },
}

OF_A_MODE: Final[dict[str, dict[str, Values]]] = {
    "DaemonSet": {
        "pod network": {"hostNetwork": False},
        "network policy": {"hostNetwork": False, "networkPolicy": {"enabled": True}},
        "directories made elsewhere": {"hostPaths": {"prepare": False}},
        "security contexts off": {
            "podSecurityContext": None,
            "containerSecurityContext": None,
            "hostPaths": {"prepare": False},
        },
        "own directories": {
            "hostPaths": {"run": "/run/other", "memory": "/dev/shm/other"},
            "storage": {"hostPaths": ["/ssd1/sluice", "/ssd2/sluice"]},
        },
        "volumes": {
            "storage": {
                "daemonSetVolumes": [
                    {
                        "ephemeral": {
                            "volumeClaimTemplate": {
                                "spec": {
                                    "accessModes": ["ReadWriteOnce"],
                                    "resources": {"requests": {"storage": "10Gi"}},
                                }
                            }
                        }
                    }
                ]
            }
        },
    },
    "StatefulSet": {
        "several volumes": {
            "storage": {
                "volumes": 2,
                "storageClassName": "local",
                "whenScaled": "Delete",
                "whenDeleted": "Delete",
            }
        },
        "security contexts off": {"podSecurityContext": None, "containerSecurityContext": None},
        "one replica": {"replicas": 1},
        "no spread": {"topologySpreadConstraints": []},
        "network policy": {"networkPolicy": {"enabled": True}},
        "network policy of namespaces": {
            "networkPolicy": {
                "enabled": True,
                "clientNamespaces": ["etl", "ad-hoc"],
                "clientPods": {"matchExpressions": None, "matchLabels": {"shuffle": "yes"}},
                "extraClients": [{"ipBlock": {"cidr": "10.1.0.0/16"}}],
                "clusterPage": True,
            }
        },
        "network policy without HTTP": {"networkPolicy": {"enabled": True, "prometheus": []}},
        "autoscaling": {"autoscaling": {"enabled": True}},
    },
}


def branches() -> dict[str, Branch]:
    """Return every branch by its name."""
    made: dict[str, Branch] = {}
    for mode, own in OF_A_MODE.items():
        for name, values in {**COMMON, **own}.items():
            made[f"{mode}: {name}"] = Branch({**deepcopy(values), "mode": mode})
        made[f"{mode}: monitoring found"] = Branch({"mode": mode}, MONITORING)
    return made


BRANCHES: Final = branches()

EVERY_OBJECT: Final[dict[str, Any]] = {
    "mode": "StatefulSet",
    "tls": ISSUER,
    "networkPolicy": {"enabled": True},
    "autoscaling": {"enabled": True},
    "drain": {"migrate": "whenCordoned"},
}
"""Values with which, and with the kinds of operators, all objects but two are made."""
