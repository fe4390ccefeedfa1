"""The pods of both modes: memory, volumes, probes, drain and names."""

from __future__ import annotations

import pytest

from sluice.protocol.limits import RECEIVE_TAIL_BYTES
from sluice.shuffle.taskmanager.config.taskmanager_config import TaskManagerConfig, load
from sluice.shuffle.taskmanager.store.tiers.memory_tier import SPARED_PART
from tests.charts.rig import Rendered, Values, needs_helm, render

pytestmark = needs_helm

MODES = ("DaemonSet", "StatefulSet")
MIB = 1 << 20
SIZES = ("512Mi", "768Mi", "1Gi", "2Gi", "3000M", "8Gi", "64Gi", "0.5Ti")

each_mode = pytest.mark.parametrize("mode", MODES)


def config_of(objects: Rendered, tmp_path) -> TaskManagerConfig:
    file = tmp_path / "taskmanager.toml"
    file.write_text(objects.toml, encoding="utf-8")
    return load(file, {}, {})


def limit_bytes(objects: Rendered) -> int:
    limits, requests = (objects.container["resources"][each] for each in ("limits", "requests"))
    assert limits["memory"] == requests["memory"]
    return int(limits["memory"].removesuffix("Mi")) * MIB


@each_mode
@pytest.mark.parametrize(
    ("memory", "processes"), [*((size, 1) for size in SIZES), *((size, 4) for size in SIZES[3:])]
)
def test_all_parts_of_the_memory_fit(mode: str, memory: str, processes: int, tmp_path):
    objects = render({"mode": mode, "memory": memory, "processes": processes, "memoryTier": True})
    config = config_of(objects, tmp_path)
    limit, storage = limit_bytes(objects), config.storage
    segment = config.memory.segment_size_bytes + RECEIVE_TAIL_BYTES
    segments = config.memory.network_segments * segment * processes
    control = config.transport.max_control_memory_bytes
    tier = storage.memory_tier_bytes + storage.memory_tier_bytes // SPARED_PART
    # docs/operate/sizing.md: at most 96 MiB for a process and its index, and page cache.
    process = 96 * MIB * processes
    used = segments + control + tier + storage.region_areas_bytes + process
    assert used <= limit * 7 / 8
    assert storage.memory_tier_bytes >= limit / 8
    assert config.memory.network_segments >= 256
    if mode == "StatefulSet":
        volume = objects.mounts()["/dev/shm"]["emptyDir"]
        assert volume["medium"] == "Memory"
        shm = int(volume["sizeLimit"].removesuffix("Mi")) * MIB
        assert tier + 15 * MIB <= shm < limit
        assert storage.region_areas_bytes == 0


@pytest.mark.parametrize("memory", SIZES)
def test_more_memory_never_makes_a_part_smaller(memory: str, tmp_path):
    smaller = config_of(render({"memory": memory}), tmp_path)
    larger = config_of(render({"memory": "1Ti"}), tmp_path)
    assert smaller.storage.memory_tier_bytes <= larger.storage.memory_tier_bytes
    assert smaller.memory.network_segments <= larger.memory.network_segments
    assert smaller.storage.region_areas_bytes <= larger.storage.region_areas_bytes


def test_uploads_take_memory_of_the_tier(tmp_path):
    plain = config_of(render({}), tmp_path)
    remote = config_of(render({"config": {"storage": {"remote": "s3://bucket/prefix"}}}), tmp_path)
    taken = plain.storage.memory_tier_bytes - remote.storage.memory_tier_bytes
    assert 59 * MIB <= taken <= 64 * MIB
    assert remote.storage.remote_upload_bytes == 64 * MIB


@pytest.mark.parametrize(
    ("mode", "tier", "has_tier"),
    [
        ("DaemonSet", "", True),
        ("DaemonSet", False, False),
        ("StatefulSet", "", False),
        ("StatefulSet", True, True),
        ("StatefulSet", "true", True),
    ],
)
def test_the_memory_tier_is_where_it_outlives_a_pod(
    mode: str, tier: object, has_tier: bool, tmp_path
):
    objects = render({"mode": mode, "memoryTier": tier})
    storage = config_of(objects, tmp_path).storage
    assert (storage.memory_tier_bytes > 0) is has_tier
    assert (storage.memory_directory is not None) is has_tier
    directory = "/dev/shm/sluice" if mode == "DaemonSet" else "/dev/shm"
    assert (directory in objects.mounts()) is has_tier
    kind = "hostPath" if mode == "DaemonSet" else "emptyDir"
    assert not has_tier or kind in objects.mounts()[directory]
    if mode == "DaemonSet":
        assert storage.region_areas_bytes > 0  # with or without a tier
        assert ("/dev/shm/sluice" in objects.pod["initContainers"][0]["args"]) is has_tier


@each_mode
def test_own_settings_win(mode: str, tmp_path):
    settings = {
        "storage": {"memory_tier_bytes": "64 MiB", "journal_sync": "commit"},
        "memory": {"network_segments": 300},
    }
    config = config_of(render({"mode": mode, "config": settings}), tmp_path)
    assert config.storage.memory_tier_bytes == 64 * MIB
    assert config.storage.journal_sync == "commit"
    assert config.memory.network_segments == 300


@each_mode
def test_null_removes_a_setting_of_the_chart(mode: str, tmp_path):
    config = config_of(
        render({"mode": mode, "config": {"cluster": {"taskmanagers": None}}}), tmp_path
    )
    assert config.cluster.taskmanagers == ()


@each_mode
def test_members_are_found_by_the_headless_service(mode: str, tmp_path):
    objects = render({"mode": mode})
    assert config_of(objects, tmp_path).cluster.taskmanagers == ("dns:sluice.shuffle.svc:7337",)
    service = objects.one("Service")
    assert (service["metadata"]["name"], service["metadata"]["namespace"]) == ("sluice", "shuffle")
    assert service["spec"]["clusterIP"] == "None"
    # One that is full or drains still has readers.
    assert service["spec"]["publishNotReadyAddresses"] is True


def test_the_settings_that_the_image_has_are_replaced():
    """Variables win over the file, and the Dockerfile sets some."""
    for mode in MODES:
        objects = render({"mode": mode})
        environment = objects.environment
        assert environment["SLUICE_DATA_DIRECTORIES"] == "/var/lib/sluice/0"
        is_local = mode == "DaemonSet"
        directory = environment["SLUICE_MEMORY_DIRECTORY"]
        assert directory == ("/dev/shm/sluice" if is_local else "none")
        socket = environment["SLUICE_SOCKET_PATH"]
        assert socket == ("/run/sluice/taskmanager.sock" if is_local else "none")
    own = {"storage": {"data_directories": ["/a", "/b"], "memory_directory": "none"}}
    environment = render({"config": own}).environment
    assert environment["SLUICE_DATA_DIRECTORIES"] == "/a:/b"
    assert environment["SLUICE_MEMORY_DIRECTORY"] == "none"


def test_a_daemonset_shares_socket_and_areas_with_executors(tmp_path):
    objects = render({"hostPaths": {"run": "/run/x", "memory": "/dev/shm/x"}})
    config, mounts = config_of(objects, tmp_path), objects.mounts()
    shared = {"path": "/run/x", "type": "DirectoryOrCreate"}
    assert mounts["/run/sluice"]["hostPath"] == shared
    assert str(config.transport.socket_path) == "/run/sluice/taskmanager.sock"
    assert str(config.storage.region_areas_directory) == "/run/sluice/areas"
    assert config.storage.region_areas_bytes > 0
    # The tier is on a tmpfs of the node: it outlives the pod, and executors do not mount it.
    assert mounts["/dev/shm/sluice"]["hostPath"]["path"] == "/dev/shm/x"
    assert str(config.storage.memory_directory) == "/dev/shm/sluice"


def test_a_daemonset_has_an_address_that_outlives_its_pods():
    objects = render({})
    assert objects.pod["hostNetwork"] is True
    assert objects.pod["dnsPolicy"] == "ClusterFirstWithHostNet"
    assert objects.environment["SLUICE_ADVERTISED_HOST"] == "status.hostIP"
    objects = render({"hostNetwork": False})
    assert "hostNetwork" not in objects.pod
    assert objects.environment["SLUICE_ADVERTISED_HOST"] == "status.podIP"


def test_a_statefulset_advertises_the_names_of_its_pods():
    objects = render({"mode": "StatefulSet"})
    assert objects.environment["POD_NAME"] == "metadata.name"
    advertised = objects.environment["SLUICE_ADVERTISED_HOST"]
    assert advertised == "$(POD_NAME).sluice.shuffle.svc"
    assert objects.workload["spec"]["serviceName"] == objects.one("Service")["metadata"]["name"]
    names = [each["name"] for each in objects.container["env"]]
    assert names.index("POD_NAME") < names.index("SLUICE_ADVERTISED_HOST")


def test_the_address_of_a_pod_is_one_of_its_taskmanager():
    """Others dial it when they look up the name of the Service."""
    environment = render({"mode": "StatefulSet", "processes": 2}).environment
    assert environment["POD_IP"] == "status.podIP"
    assert environment["SLUICE_ADDRESS_ALIASES"] == "$(POD_IP):7337,$(POD_IP):7339"
    own = {"auth": {"address_aliases": ["[fd00::1]:7337"]}}
    assert "POD_IP" not in render({"mode": "StatefulSet", "config": own}).environment
    assert "POD_IP" not in render({}).environment  # it advertises the address


@each_mode
def test_an_own_advertised_host_wins(mode: str):
    own = {"transport": {"advertised_host": "proxy.example"}}
    objects = render({"mode": mode, "config": own})
    assert "SLUICE_ADVERTISED_HOST" not in objects.environment
    assert 'advertised_host = "proxy.example"' in objects.toml


@each_mode
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, None),
        ({"zone": "z1"}, "z1"),
        ({"zoneLabel": "example.com/zone"}, "metadata.labels['example.com/zone']"),
        ({"zone": "z1", "zoneLabel": "example.com/zone"}, "z1"),
    ],
)
def test_node_and_zone_are_given(mode: str, values: Values, expected: str | None):
    environment = render({**values, "mode": mode}).environment
    assert environment["SLUICE_NODE"] == "spec.nodeName"
    assert environment.get("SLUICE_ZONE") == expected


@each_mode
def test_probes_check_three_different_things(mode: str):
    container = render({"mode": mode}).container
    ports = {each["name"] for each in container["ports"]}
    startup, readiness, liveness = (
        container[f"{name}Probe"] for name in ("startup", "readiness", "liveness")
    )
    assert startup["tcpSocket"] == {"port": "data"}
    assert readiness["httpGet"] == {"path": "/readyz", "port": "http"}
    assert liveness["httpGet"] == {"path": "/healthz", "port": "http"}
    assert ports == {"data", "http"}
    answers = TaskManagerConfig().http.http_answer_timeout_seconds
    for probe in (readiness, liveness):
        assert probe["timeoutSeconds"] > answers
    assert startup["failureThreshold"] * startup["periodSeconds"] >= 3600


@pytest.mark.parametrize(("seconds", "failures"), [(1, 1), (5, 1), (6, 2), (600, 120)])
def test_the_startup_probe_waits_for_the_adoption(seconds: int, failures: int):
    probe = render({"startupProbe": {"timeoutSeconds": seconds}}).container["startupProbe"]
    assert probe["failureThreshold"] == failures


def drain_of(**values: object) -> tuple[list[str], int]:
    objects = render(values)
    command = objects.container["lifecycle"]["preStop"]["exec"]["command"]
    return command, objects.pod["terminationGracePeriodSeconds"]


def test_a_statefulset_moves_its_data_before_it_stops():
    command, grace = drain_of(mode="StatefulSet")
    # 100 GiB, at 100 MiB a second.
    assert command == ["sluice", "drain", "--migrate", "--wait", "1024"]
    assert grace == 1024 + 30 + 30
    # A memory tier of 1340 MiB more.
    command, grace = drain_of(mode="StatefulSet", memoryTier=True)
    assert (command[-1], grace) == ("1038", 1038 + 60)


def test_a_daemonset_keeps_its_data_on_the_node():
    command, grace = drain_of()
    assert command == ["sluice", "drain", "--wait", "60"]
    assert grace == 60 + 30 + 30


@pytest.mark.parametrize(
    ("values", "seconds"),
    [
        ({"storage": {"size": "10Gi"}, "drain": {"bytesPerSecond": "1Gi"}}, 120),
        (
            {
                "storage": {"size": "10Gi"},
                "drain": {"bytesPerSecond": "1Gi", "minimumSeconds": 7},
            },
            10,
        ),
        ({"storage": {"size": "1Ti", "volumes": 2}, "drain": {"bytesPerSecond": "1Gi"}}, 2048),
        ({"storage": {"size": "1Ti"}}, 10486),
        ({"storage": {"size": "1Ti"}, "memory": "4Gi", "memoryTier": True}, 10515),
    ],
)
def test_the_time_to_move_follows_from_the_bytes(values: Values, seconds: int):
    command, grace = drain_of(mode="StatefulSet", **values)
    assert command[-1] == str(seconds)
    assert grace == seconds + 60


def test_volumes_of_nodes_count_once_for_the_time_to_move():
    drain = {"migrate": "always", "bytesPerSecond": "1Gi", "minimumSeconds": 0}
    storage = {"size": "100Gi", "hostPaths": ["/a", "/b"]}
    command, _ = drain_of(drain=drain, storage=storage)
    assert command == ["sluice", "drain", "--migrate", "--wait", "102"]


@each_mode
def test_a_cordoned_node_is_found_with_a_token_of_its_own(mode: str):
    objects = render({"mode": mode, "drain": {"migrate": "whenCordoned", "waitSeconds": 9}})
    command = objects.container["lifecycle"]["preStop"]["exec"]["command"]
    assert command[:2] == ["python", "/etc/sluice/pre_stop.py"]
    assert command[3] == "9"
    assert objects.mounts()["/etc/sluice"]["configMap"]["name"] == "sluice"
    assert "def main" in objects.one("ConfigMap", "sluice")["data"]["pre_stop.py"]
    sources = objects.mounts()["/run/sluice-api"]["projected"]["sources"]
    assert [next(iter(each)) for each in sources] == ["serviceAccountToken", "configMap"]
    assert objects.pod["automountServiceAccountToken"] is False
    assert objects.one("ClusterRole")["rules"] == [
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}
    ]
    (subject,) = objects.one("ClusterRoleBinding")["subjects"]
    assert subject["name"] == objects.pod["serviceAccountName"]


@each_mode
def test_only_a_cordoned_node_needs_the_api(mode: str):
    for migrate in ("always", "never"):
        objects = render({"mode": mode, "drain": {"migrate": migrate}})
        assert not {"ClusterRole", "ClusterRoleBinding"} & set(objects.kinds())
        assert "/run/sluice-api" not in objects.mounts()
        assert "pre_stop.py" not in objects.one("ConfigMap", "sluice")["data"]


def test_an_update_replaces_one_pod_after_the_other():
    spec = render({}).workload["spec"]
    assert spec["updateStrategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxUnavailable": 1},
    }
    spec = render({"mode": "StatefulSet"}).workload["spec"]
    assert spec["updateStrategy"] == {"type": "RollingUpdate"}
    assert spec["podManagementPolicy"] == "Parallel"
    budget = render({"mode": "StatefulSet"}).one("PodDisruptionBudget")["spec"]
    assert budget["maxUnavailable"] == 1
    # It needs a scale subresource, which a DaemonSet has not.
    assert "PodDisruptionBudget" not in render({}).kinds()


def test_volumes_of_a_statefulset_are_claims():
    storage = {"volumes": 2, "storageClassName": "local", "whenScaled": "Delete", "size": "7Gi"}
    objects = render({"mode": "StatefulSet", "storage": storage})
    spec = objects.workload["spec"]
    for number, claim in enumerate(spec["volumeClaimTemplates"]):
        assert claim["metadata"]["name"] == f"data-{number}"
        assert claim["spec"]["storageClassName"] == "local"
        assert claim["spec"]["resources"]["requests"]["storage"] == "7Gi"
    assert spec["persistentVolumeClaimRetentionPolicy"] == {
        "whenScaled": "Delete",
        "whenDeleted": "Retain",
    }
    assert objects.environment["SLUICE_DATA_DIRECTORIES"] == "/var/lib/sluice/0:/var/lib/sluice/1"
    assert {"/var/lib/sluice/0", "/var/lib/sluice/1"} <= objects.mounts().keys()


@pytest.mark.parametrize(("size", "free"), [("1Gi", 64), ("8Gi", 512), ("100Gi", 1024)])
def test_a_small_volume_is_not_all_kept_free(size: str, free: int, tmp_path):
    objects = render({"mode": "StatefulSet", "storage": {"size": size}})
    assert config_of(objects, tmp_path).storage.min_free_bytes == free * MIB


def test_directories_of_a_node_get_their_owner():
    objects = render({"storage": {"hostPaths": ["/ssd1", "/ssd2"]}})
    (prepare,) = objects.pod["initContainers"]
    mounted = {each["mountPath"] for each in prepare["volumeMounts"]}
    given = set(prepare["args"][2:])
    assert given == mounted
    assert mounted == {"/run/sluice", "/dev/shm/sluice", "/var/lib/sluice/0", "/var/lib/sluice/1"}
    assert "chown 10001:10001" in prepare["args"][0]
    assert prepare["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN"]}
    assert "initContainers" not in render({"hostPaths": {"prepare": False}}).pod
    assert "initContainers" not in render({"mode": "StatefulSet"}).pod


def test_pods_spread_over_nodes_and_zones():
    spread = render({"mode": "StatefulSet"}).pod["topologySpreadConstraints"]
    assert [each["topologyKey"] for each in spread] == [
        "kubernetes.io/hostname",
        "topology.kubernetes.io/zone",
    ]
    own = {"maxSkew": 2, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}
    selector = {"matchLabels": {"a": "b"}}
    objects = render(
        {
            "mode": "StatefulSet",
            "topologySpreadConstraints": [own, {**own, "labelSelector": selector}],
        }
    )
    first, second = objects.pod["topologySpreadConstraints"]
    assert (
        first["labelSelector"]["matchLabels"] == objects.workload["spec"]["selector"]["matchLabels"]
    )
    assert second["labelSelector"] == selector
    assert "topologySpreadConstraints" not in render({}).pod


def test_the_autoscaler_follows_the_used_tiers(tmp_path):
    objects = render({"mode": "StatefulSet", "autoscaling": {"enabled": True, "usedPercent": 50}})
    scaler = objects.one("HorizontalPodAutoscaler")["spec"]
    (metric,) = scaler["metrics"]
    tier = config_of(objects, tmp_path).storage.memory_tier_bytes
    wanted = int(metric["pods"]["target"]["averageValue"])
    assert wanted == ((100 << 30) + tier) // 2
    assert metric["pods"]["metric"]["name"] == "sluice_storage_used_bytes"
    assert scaler["scaleTargetRef"]["name"] == objects.workload["metadata"]["name"]
    assert "replicas" not in objects.workload["spec"]  # or an upgrade would undo the scaling
    (policy,) = scaler["behavior"]["scaleDown"]["policies"]
    grace = objects.pod["terminationGracePeriodSeconds"]
    assert policy == {"type": "Pods", "value": 1, "periodSeconds": grace}
    large = render(
        {"mode": "StatefulSet", "autoscaling": {"enabled": True}, "storage": {"size": "9Ti"}}
    )
    (policy,) = large.one("HorizontalPodAutoscaler")["spec"]["behavior"]["scaleDown"]["policies"]
    assert policy["periodSeconds"] == 1800  # the most that Kubernetes takes
