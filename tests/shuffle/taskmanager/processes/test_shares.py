"""The configuration of each data process."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.protocol.schema import PROCESS_PORT_STEP
from sluice.shuffle.taskmanager.bounds.accounts import Resource
from sluice.shuffle.taskmanager.bounds.quotas import Quotas
from sluice.shuffle.taskmanager.config.taskmanager_config import ConfigError, load
from sluice.shuffle.taskmanager.processes.shares import address_problems, process_count, share_of
from sluice.shuffle.taskmanager.store.tiers.disk_tier import DiskTier


def config(**flags):
    return load(None, {}, flags)


def test_only_process_0_keeps_the_configured_addresses(tmp_path):
    whole = config(
        data_port="7337",
        advertised_port="9000",
        socket_path="/run/sluice/tm.sock",
        address_aliases="proxy:80",
        data_directories=f"{tmp_path}/a:{tmp_path}/b",
        memory_directory="/dev/shm/x",
        region_areas_directory="/dev/shm/areas",
        processes="3",
    )
    first, _, third = (share_of(whole, index, 3) for index in range(3))

    assert first.transport.data_port == 7337
    assert first.transport.socket_path == whole.transport.socket_path
    assert first.auth == whole.auth
    assert first.storage.data_directories == whole.storage.data_directories
    assert first.place == (0, 3)

    assert third.transport.data_port == 7337 + 2 * PROCESS_PORT_STEP
    assert third.transport.advertised_port == 9000 + 2 * PROCESS_PORT_STEP
    assert third.transport.socket_path == Path("/run/sluice/tm.sock.2")
    assert third.auth.address_aliases == (f"proxy:{80 + 2 * PROCESS_PORT_STEP}",)
    assert third.storage.data_directories == (tmp_path / "a/process-2", tmp_path / "b/process-2")
    assert third.storage.memory_directory == Path("/dev/shm/x/process-2")
    assert third.storage.region_areas_directory == Path("/dev/shm/areas/process-2")
    assert third.place == (2, 3)


@given(processes=st.integers(1, 16), amount=st.integers(1, 1 << 40))
def test_the_shares_of_an_amount_make_it_up_and_not_much_more(processes, amount):
    whole = config(
        memory_tier_bytes=str(max(4096, amount)),
        disk_quota_bytes=str(amount),
        quota_map_outputs=str(amount),
        quota_overrides=f"alice: map_outputs = {amount}, disk_tier_bytes = 20 %",
    )
    parts = [share_of(whole, index, processes) for index in range(processes)]
    for own, of in (
        (whole.storage.memory_tier_bytes, lambda part: part.storage.memory_tier_bytes),
        (amount, lambda part: part.storage.disk_quota_bytes),
        (amount, lambda part: part.quotas.quota_map_outputs),
        (
            amount,
            lambda part: Quotas(part.quotas, {}).limits_of("alice")[Resource.MAP_OUTPUTS],
        ),
    ):
        together = sum(map(of, parts))
        assert own <= together < own + processes
    rule = parts[0].quotas.quota_overrides[0]
    assert "disk_tier_bytes = 20 %" in rule, "a percentage is one of the share already"


def test_segments_connections_and_channels_are_not_divided():
    whole = config(
        quota_channels="10",
        quota_network_segments="12",
        quota_overrides="alice: channels = 7, map_outputs = 7, connections = none",
    )
    share = share_of(whole, 1, 4)
    assert share.memory == whole.memory
    assert share.transport.max_connections == whole.transport.max_connections
    assert (share.quotas.quota_channels, share.quotas.quota_network_segments) == (10, 12)
    limits = Quotas(share.quotas, {}).limits_of("alice")
    assert (limits[Resource.CHANNELS], limits[Resource.MAP_OUTPUTS]) == (7, 2)
    assert limits[Resource.CONNECTIONS] is None


def test_each_process_reports_its_share_of_a_disk(tmp_path):
    parts = []
    for index in range(2):
        share = share_of(config(data_directories=str(tmp_path), memory_tier_bytes="0"), index, 2)
        directory = share.storage.data_directories[0]
        directory.mkdir(exist_ok=True)
        parts.append(DiskTier.open(directory, None, 0, sharers=share.storage.disk_sharers))
    alone = DiskTier.open(tmp_path / "process-1", None, 0)
    room = alone.status().free_bytes
    for part in parts:
        assert part.whole_bytes() == pytest.approx(room / 2, rel=0.05)
        assert part.status().free_bytes == pytest.approx(room / 2, rel=0.05)
    for tier in (*parts, alone):
        tier.close()


def test_no_limit_stays_none():
    share = share_of(config(quota_channels="none", memory_tier_bytes="0"), 1, 4)
    assert share.storage.disk_quota_bytes is None
    assert share.storage.remote_quota_bytes is None
    assert share.quotas.quota_channels is None
    assert share.storage.memory_tier_bytes == 0


def test_directories_of_more_processes_than_configured_are_served(tmp_path):
    (tmp_path / "b/process-2").mkdir(parents=True)
    (tmp_path / "b/process-old").mkdir()
    here = f"{tmp_path}/missing:{tmp_path}/b"
    assert process_count(config(data_directories=here)) == 3
    ((key, why),) = address_problems(config(data_port="0", data_directories=here))
    assert key == "data_port"
    assert f"3 processes (processes = 1, but there is {tmp_path}/b/process-2: remove" in why
    assert process_count(config(processes="5", data_directories=here)) == 5


@pytest.mark.parametrize(
    ("flags", "key", "text"),
    [
        ({"data_port": "0"}, "data_port", "data_port = 0 with 2 processes"),
        ({"data_port": "65534"}, "data_port", "data_port = 65534 leaves no ports for 2 processes"),
        ({"advertised_port": "65535"}, "advertised_port", "set at most 65533"),
        ({"address_aliases": "a:80,b:65534"}, "address_aliases", "= 65534 leaves no ports"),
        ({"data_port": "7336"}, "http_port", "http_port = 7338 is the data port of process 1 of 2"),
        ({"socket_path": "/" + 105 * "s"}, "socket_path", "108 bytes long, at most 107"),
    ],
)
def test_addresses_that_the_processes_cannot_have_are_named(flags, key, text, tmp_path):
    wrong = config(processes="2", data_directories=str(tmp_path), **flags)
    ((found, why),) = address_problems(wrong)
    assert (found, text in why) == (key, True), why
    assert not list(address_problems(config(processes="2", data_directories=str(tmp_path))))
    assert not list(address_problems(wrong.model_copy(update={"processes": 1})))


def test_a_directory_with_an_impossible_number_is_named(tmp_path):
    (tmp_path / "process-299").mkdir()
    ((key, why),) = address_problems(config(data_directories=str(tmp_path)))
    assert key == "processes"
    assert f"{tmp_path}/process-299: remove it to use fewer), at most 256" in why


@pytest.mark.parametrize("processes", ["0", "257"])
def test_a_wrong_number_is_refused(processes):
    with pytest.raises(ConfigError, match=f'processes = "{processes}"'):
        config(processes=processes)
