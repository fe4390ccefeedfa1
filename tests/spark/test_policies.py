"""Shuffles that a policy leaves to Spark, and what log, metrics and Spark's UI say about them."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.applications import fallbacks
from tests.spark.ui import Ui, numbers_of, rows_of
from tests.support.processes import ProcessFailed

if TYPE_CHECKING:
    from tests.spark.applications import Application, Both

OFF = {"spark.sluice.enabled": "false"}


@pytest.fixture(scope="module")
def ui(sluice: Application) -> Ui:
    return Ui(sluice)


@pytest.mark.parametrize(
    ("job", "parameters", "shuffles"),
    [
        ("excluded_job", {}, 1),
        ("excluded_query", {}, 3),
        ("excluded_query", {"aqe": "false"}, 3),
        ("excluded_query", {"as_rdd": True}, 3),
    ],
)
def test_a_query_or_a_job_can_be_excluded(
    both: Both, ui: Ui, words: str, job: str, parameters: dict[str, Any], shuffles: int
):
    settings = {"spark.sql.adaptive.enabled": parameters.get("aqe", "true")}
    before, told = ui.metrics(), len(fallbacks(both.sluice))
    compared = both.compare(
        job, other={"settings": settings}, settings=settings | OFF, words=words, **parameters
    )
    assert compared.differences == []
    assert compared.moved.written_bytes == 0
    assert compared.events.shuffle_use().bytes_written > 0
    after, lines = ui.metrics(), fallbacks(both.sluice)[told:]
    # Orders sample their input first, which may run a shuffle's map stage in a shuffle of its own.
    assert len(lines) >= shuffles
    assert {line[1:] for line in lines} == {
        ("spark.sluice.enabled=false for this query or job", "disabled")
    }
    for counter in ("fallbackShuffles", "fallbackDisabled"):
        assert after[counter] - before[counter] == len(lines)
    listed = {row[0]: row[3:6] for row in rows_of(ui.get("/sluice/"), "sluice-shuffles")}
    for shuffle, reason, policy in lines:
        assert listed[shuffle] == ["Spark's own", policy, reason]


def test_a_session_answers_whether_sluice_is_active(sluice: Application):
    expected = {
        "spark.sluice.active": "true",
        "spark.sluice.enabled": "true",
        "spark.sluice.fallback.belowSize": "0",
    }
    rows = sluice.rows("answers", keys=list(expected)).read_text(encoding="utf-8")
    assert [json.loads(row) for row in rows.splitlines()] == [
        [key, value, value] for key, value in expected.items()
    ]
    (line,) = re.findall(r"WARN Activation: (.*)", sluice.output)
    assert re.fullmatch(r"Sluice \d\S+ is active: shuffles go through the TaskManagers at .+", line)


def test_a_thread_excludes_the_queries_of_a_session_without_a_value(both: Both):
    """Spark SQL would copy a value of the session, or of the application, over the thread's."""
    compared = both.compare("query_of_an_excluded_thread")
    assert compared.differences == []
    assert compared.moved.written_bytes == 0


def test_the_next_query_goes_through_sluice_again(both: Both, words: str):
    compared = both.compare("excluded_query", settings={}, words=words)
    assert compared.differences == []
    assert compared.unaccounted() == {}
    assert compared.moved.written_bytes > 0


def test_only_shuffles_below_the_bound_fall_back(both: Both, words: str):
    """The file is larger than the bound, its counted words are not."""
    bound = {"spark.sluice.fallback.belowSize": "8000"}
    told = len(fallbacks(both.sluice))
    compared = both.compare("excluded_query", other={"settings": {}}, settings=bound, words=words)
    assert compared.differences == []
    assert compared.moved.written_bytes > 0
    lines = fallbacks(both.sluice)[told:]
    assert {policy for _, _, policy in lines} == {"too-small"}
    assert 1 <= len(lines) <= 2
    for _, reason, _ in lines:
        assert re.fullmatch(
            r"its map tasks read \d+ bytes, less than spark.sluice.fallback.belowSize=8000", reason
        )


def test_an_input_of_unknown_size_is_not_small(both: Both):
    bound = {"spark.sluice.fallback.belowSize": "1t"}
    compared = both.compare("excluded_job", other={"settings": {}}, settings=bound)
    assert compared.differences == []
    assert compared.unaccounted() == {}
    assert compared.moved.written_bytes > 0


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("spark.sluice.enabled", "maybe", "must be true or false"),
        ("spark.sluice.fallback.belowSize", "small", "small"),
    ],
)
def test_a_wrong_setting_of_a_job_fails_it(sluice: Application, key: str, value: str, told: str):
    with pytest.raises(ProcessFailed) as failure:
        sluice.rows("excluded_job", settings={key: value})
    assert f"{key} is '{value}' in the session or the thread that registers shuffle" in str(
        failure.value
    )
    assert told in str(failure.value)


def test_the_page_shows_the_state_of_the_application(both: Both, ui: Ui, words: str):
    before = ui.settled_metrics()
    compared = both.compare("excluded_query", settings={}, words=words)
    use = compared.events.shuffle_use()
    assert use.bytes_written == compared.moved.written_bytes
    counted = {
        "bytesWritten": use.bytes_written,
        "localBytesRead": use.local_bytes_read,
        "remoteBytesRead": use.remote_bytes_read,
        "mapOutputsCommitted": use.map_tasks,
        "streamsRead": use.local_blocks_fetched + use.remote_blocks_fetched,
        "fallbackShuffles": 0,
    }
    expected = {name: before[name] + count for name, count in counted.items()}
    after = ui.wait_until(lambda now: expected.items() <= now.items())
    # Compressed on the way, 28 bytes of header for each block.
    assert after["rawBytesRead"] > before["rawBytesRead"]
    (line,) = re.findall(
        r"driver_plugin_io_sluice_spark_SluicePlugin_bytesWritten_Value\{.*\} (\d+)",
        ui.get("/metrics/prometheus/"),
    )
    assert int(line) == after["bytesWritten"]
    both.sluice.rows("prepare")  # keeps its shuffle
    page = ui.get("/sluice/")
    both.sluice.rows("read_again")
    shuffles = rows_of(page, "sluice-shuffles")
    assert shuffles[0][3] == "Sluice"
    taskmanagers = rows_of(page, "sluice-taskmanagers")
    assert [row[2] for row in taskmanagers] == ["yes", "yes"]
    assert sum(numbers_of(page, "sluice-taskmanagers", "Map outputs held")) > 0
    names = [row[0] for row in rows_of(page, "sluice-counters")]
    counters = dict(zip(names, numbers_of(page, "sluice-counters", "Value"), strict=True))
    assert counters.keys() == after.keys()
    assert counters["bytesWritten"] >= after["bytesWritten"]
    settings = {row[0]: row[1:3] for row in rows_of(page, "sluice-settings")}
    assert settings["spark.sluice.driver.pingInterval"] == ["1s", "set"]
    assert settings["spark.sluice.enabled"] == ["true", "default"]
    assert 'href="/sluice/"' in ui.get("/jobs/"), "the other pages link to it"
