"""The benchmark of TLS moves every byte on each leg, with and without, and makes its figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import uvloop

from benchmarks.client_legs import MAP_OUTPUT_BYTES, Moved
from benchmarks.tls import (
    CLIENTS,
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

if TYPE_CHECKING:
    from collections.abc import Mapping


def run_of(rates: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """Return the figures of a pair: rates with and without TLS by leg, and a CPU time of each."""
    run: dict[str, float] = {}
    for leg, pair in rates.items():
        for kind, rate in zip((SECURED, PLAIN), pair, strict=True):
            run[f"{kind}_{leg}_bytes_per_second"] = rate
            run[f"{kind}_{leg}_cpu_us_per_buffer"] = 1e9 / rate
    return run


@pytest.mark.slow
def test_every_leg_is_measured_with_and_without_tls(tmp_path):
    make_certificates(tmp_path)
    runs, versions = uvloop.run(measure(tmp_path, Effort(1, 1, 1, 0)))
    found = report_of(runs, versions)
    assert len(runs) == 1  # the warm-up does not count
    assert all(found.figures[figure] > 0 for figure in RATIOS)
    assert found.figures["jvm_write_tls_cpu_ratio"] > 0
    assert "VM" in found.versions["jdk"]
    assert found.versions["openssl"].startswith("OpenSSL")


def test_only_one_kind_speaks_tls(tmp_path):
    make_certificates(tmp_path)
    assert load_tls(TransportConfig(**settings(tmp_path, PLAIN))) is None
    assert load_tls(TransportConfig(**settings(tmp_path, SECURED)), accepts=True) is not None


def test_a_figure_is_the_median_of_the_ratios_of_its_leg():
    legs = set(RATIOS.values())
    rates = [dict.fromkeys(legs, pair) for pair in ((5.0, 10.0), (9.0, 10.0), (7.0, 10.0))]
    rates[0]["jvm_read"] = rates[1]["jvm_read"] = (2.0, 10.0)
    found = report_of([run_of(pairs) for pairs in rates], {"jdk": "a VM"})
    assert found.figures["tls_rate_ratio"] == pytest.approx(0.7)
    assert found.spread["tls_rate_ratio"] == pytest.approx((0.5, 0.9))
    assert found.figures["jvm_write_tls_rate_ratio"] == pytest.approx(0.7)
    assert found.figures["jvm_read_tls_rate_ratio"] == pytest.approx(0.2)
    assert found.figures["jvm_write_tls_cpu_ratio"] == pytest.approx(10 / 7)
    assert found.versions["jdk"] == "a VM"


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
