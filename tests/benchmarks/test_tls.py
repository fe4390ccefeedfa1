"""The benchmark of TLS moves every byte on each leg, with and without, and makes its figures."""

from __future__ import annotations

import pytest
import uvloop

from benchmarks.client_legs import MAP_OUTPUT_BYTES, Moved
from benchmarks.tls import (
    CLIENTS,
    OPENSSL_PARTS,
    PLAIN,
    RATIOS,
    SECURED,
    Effort,
    make_certificates,
    measure,
    measure_client,
    report_of,
    settings,
)
from sluice.transport.config import TransportConfig
from tests.support.tls_files import load_tls


@pytest.mark.extended
@pytest.mark.slow
def test_every_leg_is_measured_with_and_without_tls(tmp_path):
    make_certificates(tmp_path)
    runs, versions = uvloop.run(measure(tmp_path, Effort(1, 1, 1, 0)))
    found = report_of(runs, versions)
    assert len(runs) == 1  # the warm-up does not count
    assert all(found.figures[figure] > 0 for figure in RATIOS)
    assert found.figures["jvm_write_tls_cpu_ratio"] > 0
    assert all(found.figures[f"openssl_{part}_seconds_per_gb"] > 0 for part in OPENSSL_PARTS)
    assert "VM" in found.versions["jdk"]
    assert found.versions["openssl"].startswith("OpenSSL")


def test_only_one_kind_speaks_tls(tmp_path):
    make_certificates(tmp_path)
    assert load_tls(TransportConfig(**settings(tmp_path, PLAIN))) is None
    assert load_tls(TransportConfig(**settings(tmp_path, SECURED)), accepts=True) is not None


class LossyLegs:
    """A client that reads less than it has written."""

    async def write(self, shuffle_id: int, map_outputs: int) -> Moved:
        return Moved(map_outputs * MAP_OUTPUT_BYTES, 1.0, 1.0)

    async def read(self, shuffle_id: int, map_outputs: int) -> Moved:
        return Moved(map_outputs * MAP_OUTPUT_BYTES - 1, 1.0, 1.0)

    async def release(self, shuffle_id: int) -> None:
        pass


@pytest.mark.parametrize("client", CLIENTS)
def test_bytes_that_do_not_come_back_fail_the_measurement(client):
    with pytest.raises(RuntimeError, match=f"{client}: 67108864 written, 67108863 read"):
        uvloop.run(measure_client(client, LossyLegs(), 2))
