"""The load factor: the used part of each resource that a TaskManager can run out of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tools.dashboards.panels import INTERVAL, Panel, Query

if TYPE_CHECKING:
    from tools.dashboards.panels import Expressions

_UNIT: Final = "percentunit"
_NOTE: Final = (
    "CPU: that of the busiest data process, of one core. Event loop: the time by which it is late. "
    "At 100 % tasks wait for the resource, or are refused."
)


def by_resource(expressions: Expressions) -> Panel:
    """Return the panel with the load of each resource of one TaskManager."""
    queries = (
        Query(text, _UNIT, f"{{{{instance}}}} {name}") for name, text in _parts(expressions).items()
    )
    return Panel("Load factor", tuple(queries), width=16, note=_NOTE)


def by_taskmanager(expressions: Expressions) -> Panel:
    """Return the panel with the load of the scarcest resource of each TaskManager."""
    named = (
        f'label_replace({text}, "resource", "{name}", "", "")'
        for name, text in _parts(expressions).items()
    )
    whole = f"max by (instance) ({' or '.join(named)})"
    note = f"The scarcest resource of each TaskManager. {_NOTE}"
    return Panel("Load factor", (Query(whole, _UNIT, "{{instance}}"),), note=note)


def _parts(expressions: Expressions) -> dict[str, str]:
    series = expressions.series

    def summed(name: str, **labels: str) -> str:
        return f"sum by (instance) ({series(name, **labels)})"

    def busiest(name: str) -> str:
        return f"max by (instance) (rate({series(name)}[{INTERVAL}]))"

    segments = "sluice_network_memory_segments"
    used, free = (summed(f"sluice_storage_{name}_bytes", tier="disk") for name in ("used", "free"))
    control = "sluice_control_memory_used_bytes", "sluice_control_memory_capacity_bytes"
    late = expressions.definitions.sum_of("sluice_event_loop_lag_seconds")
    # A supervisor works little: where there are data processes, they count instead.
    of_processes = busiest("sluice_process_cpu_seconds_total")
    return {
        "CPU": f"({of_processes} or {busiest('process_cpu_seconds_total')})",
        "event loop": busiest(late),
        "network memory": f"{summed(segments, state='!=free')} / {summed(segments)}",
        "disk": f"{used} / ({used} + {free})",
        "control memory": " / ".join(map(summed, control)),
    }
