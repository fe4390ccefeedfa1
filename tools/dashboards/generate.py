"""Writes the dashboards of ``deploy/grafana/dashboards``: ``python -m tools.dashboards.generate``.

Units and helps of the panels come from the declarations of the metrics in the status. ``make docs``
calls it too, and a test fails when a committed file differs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models

from tools.dashboards.contents import Contents, Variable, all_contents
from tools.dashboards.definitions import Definitions, declared
from tools.dashboards.panels import SOURCE, built

DIRECTORY: Final = Path(__file__).parents[2] / "deploy" / "grafana" / "dashboards"
TAG: Final = "sluice"


def files(definitions: Definitions) -> dict[str, str]:
    """Return the contents of the files by their names."""
    return {
        f"{contents.name}.json": _json(_dashboard(contents, definitions))
        for contents in all_contents(definitions)
    }


def _dashboard(contents: Contents, definitions: Definitions) -> models.Dashboard:
    links = builders.DashboardLink("Sluice").type(models.DashboardLinkType.DASHBOARDS).tags([TAG])
    made = (
        builders.Dashboard(contents.title)
        .uid(f"sluice-{contents.name}")
        .description(contents.about)
        .tags([TAG])
        .readonly()
        .time("now-1h", "now")
        .refresh("30s")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .link(links.as_dropdown(False).keep_time(True))
        .with_variable(builders.DatasourceVariable("datasource").type("prometheus"))
    )
    for variable in contents.variables:
        made.with_variable(_choice(variable))
    for title, panels in contents.rows.items():
        made.with_row(builders.Row(title))
        for panel in panels:
            made.with_panel(built(panel, definitions))
    dashboard = made.build()
    for number, placed in enumerate(dashboard.panels or (), 1):
        placed.id_val = number
    return dashboard


def _choice(variable: Variable) -> builders.QueryVariable:
    everything = models.VariableOption(text="All", value="$__all")
    return (
        builders.QueryVariable(variable.label)
        .datasource(SOURCE)
        .query(f"label_values({variable.metric}, {variable.label})")
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .current(everything)
    )


def _json(dashboard: models.Dashboard) -> str:
    return json.dumps(dashboard, cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    for name, text in files(declared()).items():
        (DIRECTORY / name).write_text(text, encoding="utf-8")
