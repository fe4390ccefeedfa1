"""Drains a TaskManager before it stops; if its node is cordoned, all map outputs move.

Usage: pre_stop.py SECONDS_TO_MIGRATE SECONDS_TO_WAIT. The variables are those of the chart's pod.
If the API server does not answer, the map outputs move, because the node may be cordoned.
"""

import json
import os
import ssl
import sys
import urllib.request
from pathlib import Path

ACCESS = Path(os.environ.get("API_ACCESS_DIRECTORY", "/run/sluice-api"))


def is_cordoned() -> bool:
    """Return whether the node is closed to new pods.

    Raises:
        OSError: The API server does not answer, or refuses the request.
        ValueError: Its answer is not JSON.
    """
    host = os.environ["KUBERNETES_SERVICE_HOST"]
    port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if ":" in host:
        host = f"[{host}]"
    request = urllib.request.Request(
        f"https://{host}:{port}/api/v1/nodes/{os.environ['SLUICE_NODE']}",
        headers={"Authorization": f"Bearer {(ACCESS / 'token').read_text().strip()}"},
    )
    context = ssl.create_default_context(cafile=str(ACCESS / "ca.crt"))
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )
    with opener.open(request, timeout=10) as answer:
        return bool(json.load(answer).get("spec", {}).get("unschedulable", False))


def main() -> None:
    """Replace this process with ``sluice drain``."""
    migrate_seconds, wait_seconds = sys.argv[1:]
    try:
        migrates = is_cordoned()
    except (OSError, ValueError, KeyError) as error:
        print(f"pre_stop.py: assuming that the node is cordoned: {error!r}", file=sys.stderr)
        migrates = True
    command = ["sluice", "drain"]
    command += ["--migrate", "--wait", migrate_seconds] if migrates else ["--wait", wait_seconds]
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
