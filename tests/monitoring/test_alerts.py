"""The alert rules: each fires when it shall, and leads to its section of the runbook."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
import yaml  # type: ignore[import-untyped]

from tests.monitoring.alert_cases import CASES, Case
from tests.monitoring.rig import ALERTS, ROOT, RULES
from tools.dashboards.definitions import declared

if TYPE_CHECKING:
    from pathlib import Path

RUNBOOK = ROOT / "docs" / "operate" / "runbook.md"
TIMEOUT_SECONDS = 60
SELECTOR = re.compile(r"\b(sluice_[a-z_]+)(?:\{([^}]*)\})?")

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)"
)


def promtool(*words: str | Path) -> None:
    done = subprocess.run(
        ["promtool", *words], capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def expected(case: Case, runbook: str) -> list[dict[str, object]]:
    """Return the alert of a case as promtool compares it."""
    if not case.summary:
        return []
    rule = ALERTS[case.alert]
    description = rule["annotations"]["description"]
    for label, value in case.labels.items():
        description = description.replace(f"{{{{ $labels.{label} }}}}", value)
    annotations = {
        "summary": case.summary,
        "description": description,
        "runbook_url": f"{runbook}#{case.alert.lower()}",
    }
    labels = rule["labels"] | case.labels
    return [{"exp_labels": labels, "exp_annotations": annotations}]


def write_tests(path: Path, runbook: str, **external_labels: str) -> None:
    """Write the cases in the form of ``promtool test rules``."""
    tests = [
        {
            "interval": "1m",
            "name": f"{case.alert} {'fires' if case.summary else 'does not fire'}",
            "external_labels": external_labels,
            "input_series": [
                {"series": name, "values": values} for name, values in case.series.items()
            ],
            "alert_rule_test": [
                {
                    "alertname": case.alert,
                    "eval_time": case.at,
                    "exp_alerts": expected(case, runbook),
                }
            ],
        }
        for case in CASES
    ]
    document = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}
    path.write_text(yaml.safe_dump(document), encoding="utf-8")


@needs_promtool
def test_the_rules_are_valid():
    promtool("check", "rules", RULES)


@needs_promtool
@pytest.mark.parametrize("page", ["", "https://docs.example/operate/runbook/"])
def test_each_alert_fires_in_its_cases_and_in_no_other(tmp_path, page):
    path = tmp_path / "cases.yml"
    labels = {"sluice_runbook": page} if page else {}
    write_tests(path, page or "docs/operate/runbook.md", **labels)
    promtool("test", "rules", path)


def test_each_alert_has_a_case_that_fires_and_one_that_does_not():
    for fires in (True, False):
        assert {case.alert for case in CASES if bool(case.summary) is fires} == ALERTS.keys()


def test_there_are_fifteen_alerts_with_a_severity_and_a_link():
    assert len(ALERTS) == 15
    for name, rule in ALERTS.items():
        assert rule["labels"]["severity"] in ("critical", "warning"), name
        assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}, name
        assert rule["annotations"]["runbook_url"].endswith(f"#{name.lower()}"), name
        assert "$labels.instance" in rule["annotations"]["summary"], name


def test_each_alert_has_its_section_of_the_runbook_and_no_section_lacks_its_alert():
    text = RUNBOOK.read_text(encoding="utf-8")
    assert re.findall(r"^## (Sluice\w+)$", text, re.MULTILINE) == list(ALERTS)
    for section in text.split("\n## Sluice")[1:]:
        name = f"Sluice{section.partition(chr(10))[0]}"
        assert "**Check**" in section, name
        assert "**Do**" in section, name


def test_rules_ask_for_metrics_and_labels_that_there_are():
    metrics = declared()
    for name, rule in ALERTS.items():
        found = SELECTOR.findall(rule["expr"])
        assert found or "up{" in rule["expr"], name
        for metric, matchers in found:
            series = metrics[metric].series
            wanted = dict(re.findall(r'(\w+)="([^"]*)"', matchers))
            assert any(wanted.items() <= each.items() for each in series), (name, metric, wanted)
            labels = set(re.findall(r"(\w+)[=!]", matchers))
            assert all(labels <= each.keys() for each in series), (name, metric, labels)
