"""The chart, images and Spark in cluster mode on a real Kubernetes cluster with two nodes.

Not collected by pytest: it takes many minutes, and starts a cluster as root. See
docs/internals/testing.md.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from tests.compose.commands import ComposeTestFailed
from tests.compose.images import REPOSITORY
from tests.kubernetes import cases
from tests.kubernetes.cluster import BINARIES, LOGS, running_cluster
from tests.kubernetes.images import (
    CHART,
    built_images,
    forget_others,
    older_release,
    product_images,
)
from tests.kubernetes.installation import Installation
from tests.kubernetes.programs import install_packages
from tests.kubernetes.table import CaseResult, render
from tests.support.processes import ProcessFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.kubernetes.cluster import Cluster
    from tests.kubernetes.installation import Mode

CASES: dict[Mode, tuple[cases.Case, ...]] = {
    "DaemonSet": (
        cases.installed,
        cases.same_result,
        cases.killed_in_map_stage,
        cases.killed_in_reduce_stage,
        cases.deleted_in_map_stage,
        cases.deleted_in_reduce_stage,
        cases.drained_node,
        cases.rolling_update,
        cases.upgraded,
        cases.uninstalled,
    ),
    "StatefulSet": (
        cases.installed,
        cases.same_result,
        cases.killed_in_map_stage,
        cases.killed_in_reduce_stage,
        cases.deleted_in_map_stage,
        cases.deleted_in_reduce_stage,
        cases.drained_node,
        cases.rolling_update,
        cases.scaled,
        cases.isolated,
        cases.upgraded,
        cases.uninstalled,
    ),
}
"""In this order; the first one installs the chart, so it always runs."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(ComposeTestFailed):
    """A signal has ended the run."""


def main() -> int:
    """Run the cases, print their table; 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", help="only these, such as StatefulSet:scaled or scaled")
    parser.add_argument("--list", action="store_true", help="print the cases with their claims")
    parser.add_argument(
        "--keep", action="store_true", help="keep the cluster after the cases, until Ctrl-C"
    )
    parser.add_argument(
        "--chart", type=Path, default=REPOSITORY / CHART, help="directory of another chart"
    )
    parser.add_argument(
        "--built", action="store_true", help="use the newest images that were built, for debugging"
    )
    parser.add_argument("--older", help="commit whose chart and image are upgraded")
    given = parser.parse_args()
    if given.list:
        for mode, functions in CASES.items():
            for case in functions:
                print(f"{mode}:{case.__name__}: {_claim(case)}")
        return 0
    wanted = _wanted(given.cases)
    for number in _SIGNALS:
        signal.signal(number, _stop)
    started = time.monotonic()
    results: list[CaseResult] = []
    try:
        install_packages()
        current = built_images() if given.built else product_images()
        images = list(current.values())
        older = None
        if any(cases.upgraded in functions for functions in wanted.values()):
            older = older_release(given.older)
            images.append(older.image)
        forget_others(images)
        with running_cluster(images) as cluster:
            print(f"the cluster runs after {time.monotonic() - started:.0f} s", flush=True)
            for mode, functions in wanted.items():
                installation = Installation(cluster, mode, current, given.chart)
                setting = cases.Setting(installation, older)
                results += _run_mode(setting, functions)
            if given.keep:
                _wait_for_interrupt(cluster)
    except (ComposeTestFailed, ProcessFailed) as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    finally:
        if results:
            print(render(results), flush=True)
    print(f"{time.monotonic() - started:.0f} s in all", flush=True)
    return 0 if all(each.passed for each in results) else 1


def _wanted(names: list[str]) -> Mapping[Mode, tuple[cases.Case, ...]]:
    """Return the cases of each mode that are to run."""
    known = {f"{mode}:{case.__name__}" for mode, each in CASES.items() for case in each}
    known |= {name.split(":")[1] for name in known} | set(CASES)
    unknown = set(names) - known
    if unknown:
        raise SystemExit(f"no such cases: {', '.join(sorted(unknown))}; --list prints all")
    wanted: dict[Mode, tuple[cases.Case, ...]] = {}
    for mode, functions in CASES.items():
        chosen = [
            case
            for case in functions
            if not names or {mode, case.__name__, f"{mode}:{case.__name__}"} & set(names)
        ]
        if chosen:
            wanted[mode] = tuple(dict.fromkeys([cases.installed, *chosen]))
    return wanted


def _run_mode(setting: cases.Setting, functions: tuple[cases.Case, ...]) -> list[CaseResult]:
    installation = setting.installation
    results: list[CaseResult] = []
    for case in functions:
        name = f"{installation.mode}:{case.__name__}"
        print(f"{name}: {_claim(case)}", flush=True)
        started = time.monotonic()
        try:
            counted, passed = case(setting), True
        except (ComposeTestFailed, ProcessFailed) as error:
            if isinstance(error, Stopped):
                raise
            counted, passed = str(error).splitlines()[0], False
            print(f"FAILED: {error}", file=sys.stderr)
            installation.save_logs(LOGS.parent / "failed" / name.replace(":", "-"))
        results.append(CaseResult(name, time.monotonic() - started, counted, passed))
        print(f"{name}: {'passed' if passed else 'FAILED'}: {counted}", flush=True)
        installation.clean_up()
        if case is cases.installed and not passed:
            break
    installation.remove()
    return results


def _claim(case: cases.Case) -> str:
    return (case.__doc__ or "").strip().splitlines()[0]


def _wait_for_interrupt(cluster: Cluster) -> None:
    network = f"/run/netns/{cluster.network}"
    kubectl = f"nsenter --net={network} {BINARIES / 'kubectl'}"
    print(f"{kubectl} --kubeconfig={cluster.plane.kubeconfig} get pods -A", flush=True)
    print("the cluster runs until Ctrl-C", flush=True)
    with contextlib.suppress(Stopped):
        signal.pause()


def _stop(number: int, frame: object) -> NoReturn:
    # Taking everything down must not be cut short.
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise Stopped(f"told to stop by {signal.Signals(number).name}")


if __name__ == "__main__":
    sys.exit(main())
