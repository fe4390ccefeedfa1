"""Settings that cannot work on a host: the checks alone, on facts that are made up."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from sluice.protocol.limits import RECEIVE_TAIL_BYTES
from sluice.shuffle.taskmanager.config.taskmanager_config import (
    ConfigError,
    TaskManagerConfig,
    load,
)
from sluice.shuffle.taskmanager.process import host_limits
from sluice.shuffle.taskmanager.process.host_limits import (
    DIRECTORY_THREADS,
    OTHER_DESCRIPTORS,
    OTHER_THREADS,
    FileSystem,
    HostFacts,
    control_group_limit,
    fitted,
    gather,
    problems,
)

GIB = 1 << 30
MEMORY, DATA, AREAS = Path("/dev/shm/m"), Path("/data/1"), Path("/run/areas")


def a_host(**changes: object) -> HostFacts:
    facts = HostFacts(
        memory_bytes=16 * GIB,
        control_group_bytes=None,
        descriptors=20_000,
        threads=None,
        file_systems={
            MEMORY: FileSystem("tmpfs", 8 * GIB),
            AREAS: FileSystem("tmpfs", GIB),
            DATA: FileSystem("ext4", 100 * GIB),
        },
    )
    return facts._replace(**changes)  # type: ignore[arg-type]


def a_config(**given: object) -> TaskManagerConfig:
    flags = {"memory_directory": str(MEMORY), "data_directories": str(DATA)} | given
    return load(None, {}, {name: str(value) for name, value in flags.items()})


def one_problem(config: TaskManagerConfig, host: HostFacts) -> host_limits.HostProblem:
    (found,) = problems(config, host)
    return found


def test_the_defaults_fit_an_ordinary_host():
    assert problems(TaskManagerConfig(), a_host()) == []
    assert problems(a_config(), a_host()) == []


def test_unknown_facts_refuse_nothing():
    nothing = HostFacts(None, None, None, None, {})
    given = a_config(
        network_segments=1 << 24, memory_tier_bytes="1 TiB", min_free_bytes="9 TiB", io_threads=256
    )
    assert problems(given, nothing) == []
    assert fitted(given, None) is given


# ---- memory


def test_segments_beyond_the_memory_are_refused():
    """The limit is exact: as many as fit are taken."""
    stride = 32 * 1024 + RECEIVE_TAIL_BYTES
    most = GIB // stride
    host = a_host(memory_bytes=GIB)
    alone = {"memory_tier_bytes": 0, "region_areas_bytes": 0}
    assert problems(a_config(network_segments=most, **alone), host) == []
    found = one_problem(a_config(network_segments=most + 1, **alone), host)
    assert found.key == "network_segments"
    assert f"network_segments = {most + 1}" in found.text
    assert "this host has 1 GiB of memory" in found.text
    assert f"set at most {most}" in found.text


@pytest.mark.parametrize(("physical", "group", "whose"), [
    (16 * GIB, GIB, "the control group of this process allows 1 GiB"),
    (GIB, 16 * GIB, "this host has 1 GiB"),
    (None, GIB, "the control group of this process allows 1 GiB"),
])  # fmt: skip
def test_the_smaller_limit_counts_and_is_named(physical, group, whose):
    host = a_host(memory_bytes=physical, control_group_bytes=group)
    assert whose in one_problem(a_config(network_segments=1 << 20), host).text


def test_a_memory_tier_beyond_the_control_group_is_refused():
    found = one_problem(a_config(memory_tier_bytes="6 GiB"), a_host(control_group_bytes=4 * GIB))
    assert found.key == "memory_tier_bytes"
    assert "memory_tier_bytes 6 GiB" in found.text
    assert "the control group of this process allows 4 GiB of memory" in found.text
    assert found.text.endswith("lower memory_tier_bytes")


def test_parts_that_fit_alone_are_refused_together_by_the_largest():
    config = a_config(memory_tier_bytes="600 MiB", region_areas_bytes="900 MiB")
    assert problems(config, a_host(memory_bytes=2 * GIB)) == []
    found = one_problem(config, a_host(memory_bytes=GIB))
    assert found.key == "region_areas_bytes"
    assert "network_segments 64.1 MiB, memory_tier_bytes 600 MiB" in found.text


def test_files_on_a_disk_take_no_memory():
    disks = {MEMORY: FileSystem("ext4", 100 * GIB), DATA: FileSystem("ext4", 100 * GIB)}
    config = a_config(memory_tier_bytes="50 GiB", region_areas_bytes="50 GiB")
    assert problems(config, a_host(file_systems=disks)) == []


def test_areas_of_a_directory_of_their_own_count_by_its_file_system():
    """They can never take more than it has."""
    config = a_config(region_areas_bytes="50 GiB", region_areas_directory=AREAS)
    assert problems(config, a_host()) == []
    disk = {MEMORY: FileSystem("tmpfs", 100 * GIB), AREAS: FileSystem("tmpfs", 100 * GIB)}
    assert one_problem(config, a_host(file_systems=disk)).key == "region_areas_bytes"


# ---- file systems


def test_a_memory_tier_beyond_its_tmpfs_is_refused():
    small = {MEMORY: FileSystem("tmpfs", 64 << 20)}
    host = a_host(file_systems=small)
    found = one_problem(a_config(memory_tier_bytes="65 MiB"), host)
    assert found.key == "memory_tier_bytes"
    assert f"memory_directory {MEMORY} has 64 MiB in all" in found.text
    assert "--shm-size" in found.text
    assert problems(a_config(memory_tier_bytes="64 MiB"), host) == []
    assert problems(a_config(), host) == []  # the default is made smaller


@pytest.mark.parametrize(("least", "refused"), [("99 GiB", False), ("100 GiB", True)])
def test_a_floor_of_free_space_as_large_as_the_disk_is_refused(least, refused):
    found = problems(a_config(min_free_bytes=least), a_host())
    assert [each.key for each in found] == ["min_free_bytes"] * refused
    if refused:
        assert f"data directory {DATA} has 100 GiB in all" in found[0].text


def test_each_disk_has_its_own_say():
    other = Path("/data/2")
    small = a_host().file_systems | {other: FileSystem("ext4", GIB)}
    config = a_config(data_directories=f"{DATA}:{other}", min_free_bytes="2 GiB")
    assert str(other) in one_problem(config, a_host(file_systems=small)).text


# ---- the rest


@pytest.mark.parametrize(("connections", "refused"), [(936, False), (937, True)])
def test_connections_beyond_the_descriptors_are_refused(connections, refused):
    found = problems(a_config(max_connections=connections), a_host(descriptors=1000))
    assert [each.key for each in found] == ["max_connections"] * refused
    if refused:
        assert "may have 1000 open files" in found[0].text
        assert "set at most 936" in found[0].text


def test_the_default_of_connections_gives_way_to_few_descriptors():
    config = a_config()
    assert problems(config, a_host(descriptors=1000)) == []
    assert fitted(config, 1000).transport.max_connections == 1000 - OTHER_DESCRIPTORS
    assert fitted(config, 20_000) is config


def test_hardly_any_descriptors_are_refused():
    found = one_problem(a_config(), a_host(descriptors=2 * OTHER_DESCRIPTORS - 1))
    assert found.key == "max_connections"
    assert "at least 128 are needed" in found.text


@pytest.mark.parametrize(("threads", "refused"), [(56, False), (57, True)])
def test_threads_beyond_the_control_group_are_refused(threads, refused):
    found = problems(
        a_config(io_threads=threads),
        a_host(threads=2 * 56 + OTHER_THREADS + 2 * DIRECTORY_THREADS),
    )
    assert [each.key for each in found] == ["io_threads"] * refused


def test_all_problems_are_told_with_their_origins():
    def check(config: TaskManagerConfig) -> list[host_limits.HostProblem]:
        return problems(config, a_host(memory_bytes=GIB, descriptors=1000))

    with pytest.raises(ConfigError) as caught:
        load(
            None,
            {"SLUICE_NETWORK_SEGMENTS": "16777216"},
            {"max_connections": "5000", "memory_directory": None},
            check,
        )
    first, second = map(str, caught.value.problems)
    assert first.endswith("[SLUICE_NETWORK_SEGMENTS]")
    assert second.endswith("[--max-connections]")


# ---- the facts


@pytest.fixture
def groups(tmp_path):
    """Write files of control groups; return the limit that a process of one finds."""

    def limit(member: str, files: dict[str, str]) -> int | None:
        for name, text in files.items():
            path = tmp_path / "groups" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")
        (tmp_path / "member").write_text(member)
        return control_group_limit(
            "memory",
            "memory.max",
            "memory.limit_in_bytes",
            mounted=tmp_path / "groups",
            member=tmp_path / "member",
        )

    return limit


def test_version_2_has_the_least_limit_on_the_way_to_the_root(groups):
    files = {"a/memory.max": "2000", "a/b/memory.max": "max", "a/b/c/memory.max": "3000"}
    assert groups("0::/a/b/c\n", files) == 2000


def test_version_1_has_a_tree_for_each_controller(groups):
    files = {"memory/a/memory.limit_in_bytes": "5000", "memory/memory.limit_in_bytes": "7000"}
    assert groups("9:name=systemd:/a\n4:cpu,memory:/a\n0::/\n", files) == 5000


def test_a_container_sees_its_own_group_as_the_root(groups):
    files = {"memory/memory.limit_in_bytes": "7000"}
    assert groups("4:memory:/docker/0123456789abcdef\n", files) == 7000


@pytest.mark.parametrize(
    ("member", "files"),
    [
        ("0::/a\n", {"a/memory.max": "max"}),
        ("4:memory:/a\n", {"memory/a/memory.limit_in_bytes": "9223372036854771712"}),
        ("4:cpu:/a\n", {"memory/a/memory.limit_in_bytes": "1000"}),
        ("0::/a\n", {}),
        ("nonsense\n", {}),
    ],
)
def test_there_may_be_no_limit(groups, member, files):
    assert groups(member, files) is None


def test_this_host_has_facts(tmp_path):
    config = a_config(data_directories=tmp_path / "not" / "there")
    facts = gather(config)
    assert facts.memory_bytes
    assert facts.file_systems[tmp_path / "not" / "there"].size_bytes > 0


def test_the_soft_limit_of_descriptors_is_raised(monkeypatch, caplog):
    limits = [(1024, 1500)]
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda which, given: limits.append(given))
    assert host_limits.fit(a_config(max_connections=1100)).transport.max_connections == 1100
    assert limits[-1] == (1100 + OTHER_DESCRIPTORS, 1500)
    assert not caplog.messages
    assert host_limits.fit(a_config()).transport.max_connections == 1500 - OTHER_DESCRIPTORS
    assert limits[-1] == (1500, 1500)
    assert "max_connections is 1436 instead of 8192" in caplog.text
    host_limits.fit(a_config())
    assert len(limits) == 3


def test_several_data_processes_need_several_times_the_segments_and_threads():
    one = TaskManagerConfig()
    two = one.model_copy(update={"processes": 2})
    segments = one.memory.network_segments * (one.memory.segment_size_bytes + RECEIVE_TAIL_BYTES)
    tight = a_host(memory_bytes=segments * 3 // 2, threads=20)
    assert [each.key for each in problems(one, tight)] == []
    found = {each.key: each.text for each in problems(two, tight)}
    assert set(found) == {"network_segments", "io_threads"}
    assert all("for 2 data processes" in text for text in found.values())
