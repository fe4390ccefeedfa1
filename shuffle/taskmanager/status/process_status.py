"""The status of one data process of a TaskManager that has several."""

from typing import Annotated, ClassVar, Literal, TypeAlias

import msgspec

from ...metric import gauge, total

ProcessState: TypeAlias = Literal["starting", "ready", "draining", "stopped", "silent", "ended"]

_BYTES = total(
    "Bytes over accepted connections of a data process since it started.",
    "process_connection_bytes",
    by="process",
)


class ProcessStatus(msgspec.Struct, frozen=True, gc=False):
    """One data process: whether it runs, and how busy it is compared with the others."""

    metric_prefix: ClassVar[str] = "process_"

    index: int = 0
    """Its number, from 0. It stays the same when the process is started again."""
    taskmanager_id: str = ""
    address: str = ""
    """``host:port`` under which others reach its data port."""
    pid: int = 0
    """Its process id; 0 while it does not run."""
    state: ProcessState = "starting"
    """The state of a TaskManager, ``"silent"`` while the process does not answer, or ``"ended"``
    while it does not run."""
    reason: str = ""
    """How it ended; empty while it runs."""
    restarts: Annotated[int, total("Starts of a data process after it ended.", by="process")] = 0
    uptime_seconds: float = 0.0
    cpu_seconds: Annotated[
        float, total("CPU time of a data process since it started.", by="process")
    ] = 0.0
    max_lag_seconds: Annotated[
        float,
        gauge(
            "The worst lag of the event loop of a data process in the last minute.",
            "process_event_loop_lag_max_seconds",
            by="process",
        ),
    ] = 0.0
    connections: Annotated[int, gauge("Open connections of a data process.", by="process")] = 0
    bytes_in: Annotated[int, _BYTES.at(direction="in")] = 0
    """Bytes over its accepted connections since it started, frame headers included, as in
    ``bytes_out``."""
    bytes_out: Annotated[int, _BYTES.at(direction="out")] = 0

    @property
    def process(self) -> str:
        """The label of its metrics."""
        return str(self.index)

    @property
    def up(
        self,
    ) -> Annotated[bool, gauge("1 while the data process serves.", by="process")]:
        """Whether the process serves."""
        return self.state in ("ready", "draining")

    @property
    def condition(self) -> str:
        """Its state, with the reason."""
        return f"{self.state} ({self.reason})" if self.reason else self.state
