"""The committed dashboards are the generated ones, and each panel says what it shows."""

from __future__ import annotations

import re
from itertools import chain

import pytest
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import Dataquery
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily

from tests.monitoring.rig import DASHBOARDS, dashboards, panel_queries, panels
from tools.dashboards.contents import all_contents
from tools.dashboards.definitions import (
    COUNT,
    NAME,
    PER_SECOND,
    YES_OR_NO,
    Definition,
    Definitions,
    UnknownMetric,
    declared,
)
from tools.dashboards.generate import files
from tools.dashboards.panels import Expressions, Panel, Query, built

MAX_PANELS = 40
KINDS = {"timeseries", "stat", "table", "heatmap"}
MATCHER = re.compile(r"\b((?:sluice|process)_[a-z_]+)\{([^}]*)\}")


def histogram(name: str) -> HistogramMetricFamily:
    family = HistogramMetricFamily(name, "Time that something took.")
    family.add_metric((), [("0.1", 1), ("+Inf", 2)], 0.5)
    return family


def test_the_committed_dashboards_are_the_generated_ones():
    committed = {path.name: path.read_text(encoding="utf-8") for path in DASHBOARDS.iterdir()}
    assert committed == files(declared()), "run: make docs"


def test_there_are_at_most_forty_panels_with_titles_of_their_own():
    found = {name: panels(each) for name, each in dashboards().items()}
    assert found.keys() == {"cluster", "host", "application"}
    assert sum(map(len, found.values())) <= MAX_PANELS
    for name, shown in found.items():
        titles = [panel["title"] for panel in shown]
        assert len(set(titles)) == len(titles), name


def test_each_panel_has_a_unit_a_form_and_the_help_of_its_metrics():
    metrics = declared()
    for panel in chain.from_iterable(map(panels, dashboards().values())):
        assert panel["type"] in KINDS
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["description"], panel["title"]
        for target in panel["targets"]:
            for name in NAME.findall(target["expr"]):
                assert metrics[name].text in panel["description"], (panel["title"], name)


def test_queries_ask_for_labels_that_there_are():
    metrics = declared()
    for query in panel_queries():
        for name, matchers in MATCHER.findall(query.expression):
            series = metrics[name].series
            wanted = dict(re.findall(r'(\w+)="([^"]*)"', matchers))
            if name != "sluice_application_held":  # a sample has but two of the resources
                assert any(wanted.items() <= each.items() for each in series), query


def test_the_sdk_reads_the_committed_dashboards():
    register_default_plugins()  # the types of queries and options
    for name, document in dashboards().items():
        read = models.Dashboard.from_json(document)
        assert read.uid == f"sluice-{name}"
        read_panels = [panel for panel in read.panels or () if isinstance(panel, models.Panel)]
        assert [panel.title for panel in read_panels] == [
            panel["title"] for panel in panels(document)
        ]
        targets = [target for panel in read_panels for target in panel.targets or ()]
        assert all(isinstance(target, Dataquery) and target.expr for target in targets)


def test_panels_do_not_overlap():
    for name, document in dashboards().items():
        taken: set[tuple[int, int]] = set()
        for panel in document["panels"]:
            place = panel["gridPos"]
            assert place["x"] + place["w"] <= 24, (name, panel["title"])
            cells = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            assert not cells & taken, (name, panel["title"])
            taken |= cells


def test_each_histogram_gets_a_heat_map():
    lag = Definition("sluice_event_loop_lag_seconds_total", "counter", "Lags.")
    usual = [lag, *(each for each in declared() if each.kind != "histogram")]
    for names in ((), ("sluice_commit_seconds",), ("sluice_commit_seconds", "sluice_x_seconds")):
        definitions = Definitions(map(histogram, names))
        definitions._by_name.update({each.name: each for each in usual})
        shown = [
            panel
            for contents in all_contents(definitions)
            for row in contents.rows.values()
            for panel in row
            if panel.kind == "heatmap"
        ]
        assert [panel.queries[0].expression for panel in shown] == [
            f'sum by (le) (increase({name}_bucket{{job=~"$job",instance=~"$instance"}}'
            "[$__rate_interval]))"
            for name in names
        ]
        assert {panel.unit for panel in shown} == ({"s"} if names else set())
        assert len(files(definitions)) == 3


@pytest.mark.parametrize(
    ("name", "kind", "text", "unit", "rate_unit", "title"),
    [
        ("sluice_used_bytes", "gauge", "Bytes.", "bytes", "binBps", "Used"),
        ("sluice_sent_bytes_total", "counter", "Bytes.", "bytes", "binBps", "Sent"),
        ("sluice_wait_seconds_total", "counter", "Time.", "s", COUNT, "Wait"),
        ("sluice_quota_used_ratio", "gauge", "Part.", "percentunit", PER_SECOND, "Quota used"),
        ("sluice_free_segments", "gauge", "Some.", "suffix: segments", PER_SECOND, "Free"),
        ("sluice_gates", "gauge", "Gates.", COUNT, PER_SECOND, ""),
        ("sluice_up", "gauge", "1 while it serves.", YES_OR_NO, PER_SECOND, ""),
    ],
)
def test_units_follow_from_the_declaration(name, kind, text, unit, rate_unit, title):
    definition = Definition(name, kind, text)
    assert (definition.unit, definition.rate_unit) == (unit, rate_unit)
    assert not title or definition.title == title


def test_an_unknown_metric_is_refused():
    definitions = Definitions([GaugeMetricFamily("sluice_known", "Help.")])
    panel = Panel("Wrong", (Query("sum(sluice_unknown)", COUNT, ""),))
    with pytest.raises(UnknownMetric, match="sluice_unknown; correct the panel"):
        built(panel, definitions)
    with pytest.raises(UnknownMetric):
        Expressions(definitions, "").amount("sluice_unknown")


def test_a_panel_has_one_unit():
    queries = Query("sluice_known", "s", ""), Query("sluice_known", "bytes", "")
    with pytest.raises(ValueError, match=r"needs one unit, got \['bytes', 's'\]: split it"):
        _ = Panel("Wrong", queries).unit
