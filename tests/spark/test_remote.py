"""A job whose shuffle data are several times memory and disk tier together, the rest in S3."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.applications import Application, Both, sluice_settings
from tests.support.daemons import Daemons
from tests.support.s3 import CREDENTIALS, SERVER, S3Server, s3_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.spark.driver import Driver
    from tests.support.cluster import StandaloneCluster

TIER = "128 KiB"
TIERS_BYTES = 2 * 2 * 128 * 1024
"""Memory and disk tier of both hosts together."""

pytestmark = pytest.mark.skipif(not SERVER.exists(), reason="make s3-server")


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    directory = Path(tempfile.mkdtemp(prefix="sluice-s3-"))
    try:
        with s3_server(directory) as running:
            yield running
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="module")
def bucket(server: S3Server) -> str:
    return server.bucket()


@pytest.fixture(scope="module")
def small(directory: Path, server: S3Server, bucket: str) -> Iterator[Daemons]:
    with Daemons(
        directory / "tm-remote",
        environment=CREDENTIALS,
        memory_tier_bytes=TIER,
        disk_quota_bytes=TIER,
        remote=f"s3://{bucket}/shuffles",
        remote_endpoint=server.endpoint,
    ) as running:
        yield running


@pytest.fixture(scope="module")
def pair(
    own: Application, driver: Driver, cluster: StandaloneCluster, small: Daemons
) -> Iterator[Both]:
    settings = sluice_settings(small)
    with driver.application("remote", cluster.master_url, settings) as running:
        yield Both(own, running, small)


def test_data_beyond_memory_and_disk_lie_in_the_bucket_and_are_read_right(
    pair: Both, small: Daemons, server: S3Server, bucket: str
):
    compared = pair.compare("frame_wide", rows=60_000)
    assert compared.differences == []
    assert compared.unaccounted() == {}
    assert compared.moved.written_bytes > 3 * TIERS_BYTES
    remote = [daemon.status().remote for daemon in small]
    assert sum(each.written_bytes for each in remote) > 2 * TIERS_BYTES
    assert sum(each.read_bytes for each in remote) > 2 * TIERS_BYTES
    assert sum(each.errors for each in remote) == 0
    assert any(name.startswith("shuffles/") for name in server.objects(bucket))
