"""Panels: expressions with the units and helps of their metrics, and Grafana's form of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import heatmap, prometheus, stat, table, timeseries
from grafana_foundation_sdk.models import common, dashboard
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

if TYPE_CHECKING:
    from tools.dashboards.definitions import Definition, Definitions

Kind: TypeAlias = Literal["timeseries", "stat", "table", "heatmap"]

SOURCE: Final = dashboard.DataSourceRef(type_val="prometheus", uid="${datasource}")
INTERVAL: Final = "$__rate_interval"
"""Grafana's variable for the shortest interval that a rate can have at this zoom."""

_HEIGHT: Final = 8
_STAT_HEIGHT: Final = 4
_BUILDERS: Final[dict[Kind, Any]] = {
    "timeseries": timeseries.Panel,
    "stat": stat.Panel,
    "table": table.Panel,
    "heatmap": heatmap.Panel,
}


@dataclass(frozen=True)
class Query:
    """An expression of a panel.

    Attributes:
        expression: In PromQL, with Grafana's variables.
        unit: Grafana's unit of its values.
        legend: Name of its series, with ``{{label}}``.
    """

    expression: str
    unit: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """A panel.

    Attributes:
        title: Its title.
        queries: What it shows.
        kind: Its form.
        width: In the 24 columns of a dashboard.
        note: What the helps of the metrics do not say.
        stacked: Whether its series add up to something.
    """

    title: str
    queries: tuple[Query, ...]
    kind: Kind = "timeseries"
    width: int = 8
    note: str = ""
    stacked: bool = False

    @property
    def unit(self) -> str:
        """The unit of all its queries.

        Raises:
            ValueError: They have different ones, so that one axis cannot show them.
        """
        units = sorted({query.unit for query in self.queries})
        if len(units) != 1:
            raise ValueError(f"Panel {self.title!r} needs one unit, got {units}: split it")
        return units[0]


class Expressions:
    """Makes the queries of a dashboard.

    Args:
        definitions: The metrics.
        matchers: Matchers of all its series, such as ``job=~"$job"``.
    """

    def __init__(self, definitions: Definitions, matchers: str) -> None:
        self.definitions: Final = definitions
        self._matchers: Final = matchers

    def series(self, name: str, **labels: str) -> str:
        """Return the selector of a metric; the value of a label may begin with ``!=`` or ``=~``."""
        matchers = [self._matchers]
        for label, value in labels.items():
            operator = value[:2] if value.startswith(("!=", "=~", "!~")) else "="
            matchers.append(f'{label}{operator}"{value.removeprefix(operator)}"')
        return f"{name}{{{','.join(matchers)}}}"

    def amount(
        self, name: str, by: str = "", *, how: str = "sum", legend: str = "", **labels: str
    ) -> Query:
        """Return the values of a gauge, added up or combined otherwise by some labels."""
        text = _aggregated(how, by, self.series(name, **labels))
        return Query(text, self.definitions[name].unit, legend or _legend(by))

    def rate(self, name: str, by: str = "", *, legend: str = "", **labels: str) -> Query:
        """Return the increase of a counter in a second, added up by some labels."""
        text = _aggregated("sum", by, f"rate({self.series(name, **labels)}[{INTERVAL}])")
        return Query(text, self.definitions[name].rate_unit, legend or _legend(by))

    def heat_map(self, definition: Definition) -> Panel:
        """Return the panel of a histogram: how many observations each of its buckets got."""
        buckets = f"increase({self.series(f'{definition.name}_bucket')}[{INTERVAL}])"
        query = Query(_aggregated("sum", "le", buckets), definition.unit, "{{le}}")
        return Panel(definition.title, (query,), kind="heatmap")


def built(panel: Panel, definitions: Definitions) -> Any:
    """Return the builder of a panel.

    Raises:
        UnknownMetric: It names a metric that there is not.
        ValueError: Its queries have different units.
    """
    builder = (
        _BUILDERS[panel.kind]()
        .title(panel.title)
        .description(description(panel, definitions))
        .datasource(SOURCE)
        .unit(panel.unit)
        .span(panel.width)
        .height(_STAT_HEIGHT if panel.kind == "stat" else _HEIGHT)
    )
    for number, query in enumerate(panel.queries):
        builder.with_target(_target(panel.kind, query, chr(ord("A") + number)))
    match panel.kind:
        case "timeseries":
            builder.min(0).fill_opacity(30 if panel.stacked else 0).show_points(
                common.VisibilityMode.NEVER
            )
            builder.legend(
                common_builders.VizLegendOptions()
                .show_legend(True)
                .display_mode(common.LegendDisplayMode.LIST)
                .placement(common.LegendPlacement.BOTTOM)
            )
            builder.tooltip(
                common_builders.VizTooltipOptions()
                .mode(common.TooltipDisplayMode.MULTI)
                .sort(common.SortOrder.DESCENDING)
            )
            if panel.stacked:
                mode = common.StackingMode.NORMAL
                builder.stacking(common_builders.StackingConfig().mode(mode))
        case "heatmap":
            builder.calculate(False).y_axis(heatmap.YAxisConfig().unit(panel.unit))
            builder.color(
                heatmap.HeatmapColorOptions()
                .mode(HeatmapColorMode.SCHEME)
                .scheme("Blues")
                .steps(64)
            )
        case "stat":
            builder.text_mode(common.BigValueTextMode.VALUE_AND_NAME)
            builder.graph_mode(common.BigValueGraphMode.NONE)
            builder.reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"]))
    return builder


def description(panel: Panel, definitions: Definitions) -> str:
    """Return the helps of the metrics of a panel, and its note."""
    named = [each for query in panel.queries for each in definitions.named_in(query.expression)]
    helps = [f"`{each.name}`: {each.text}" for each in dict.fromkeys(named)]
    return "\n\n".join([*([panel.note] if panel.note else []), *helps])


def _target(kind: Kind, query: Query, reference: str) -> prometheus.Dataquery:
    target = (
        prometheus.Dataquery()
        .expr(query.expression)
        .legend_format(query.legend)
        .ref_id(reference)
        .datasource(SOURCE)
    )
    match kind:
        case "stat":
            return target.instant()
        case "table":
            return target.instant().format(PromQueryFormat.TABLE)
        case "heatmap":
            return target.range().format(PromQueryFormat.HEATMAP)
    return target.range()


def _aggregated(how: str, by: str, expression: str) -> str:
    labels = f" by ({', '.join(by.split())}) " if by else ""
    return f"{how}{labels}({expression})"


def _legend(by: str) -> str:
    return " ".join(f"{{{{{label}}}}}" for label in by.split())
