"""The generated files of the chart are up to date, and it has the product's version."""

from __future__ import annotations

import re
import tomllib

import pytest
import yaml  # type: ignore[import-untyped]  # of mkdocs

from tests.charts.rig import CHART, ROOT
from tools.docs.helm_chart import README, SCHEMA, VALUES, objects, readme, rows, schema

TEXT = VALUES.read_text(encoding="utf-8")


def test_the_committed_readme_is_the_generated_one():
    committed = README.read_text(encoding="utf-8")
    assert readme(committed, TEXT) == committed, "run: make docs"


def test_the_committed_schema_is_the_generated_one():
    assert schema(TEXT) == SCHEMA.read_text(encoding="utf-8"), "run: make docs"


def test_the_chart_has_the_version_of_the_product():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["appVersion"] == chart["version"] == project["version"]


def test_every_value_has_a_row():
    found = [row.path for row in rows(TEXT)]
    assert len(set(found)) == len(found) > 90
    assert all(row.section for row in rows(TEXT))


def test_a_value_without_a_comment_is_refused():
    with pytest.raises(ValueError, match=r"no comment above a\.b"):
        list(rows("## S\n\na:\n  b: 1\n"))


def test_every_object_can_be_changed():
    """Each template that makes an object has the values `merge` and `patch`."""
    templates = "".join(path.read_text() for path in (CHART / "templates").glob("*.yaml"))
    used = re.findall(r'include "sluice\.object" \(dict .*? "key" "([a-zA-Z.]+)"', templates)
    assert sorted(used) == sorted(objects(TEXT))
    made = re.findall(r"^kind: ", templates, re.MULTILINE)
    assert len(used) == len(made) == 17


def test_links_to_alerts_and_dashboards_are_not_copies():
    for name, target in (
        ("alerts.yml", "prometheus/alerts.yml"),
        ("dashboards", "grafana/dashboards"),
    ):
        link = CHART / "files" / name
        assert link.is_symlink()
        assert link.resolve() == (ROOT / "deploy" / target).resolve()
