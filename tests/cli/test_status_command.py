"""``sluice status`` over several TaskManagers: a line each, sums, and the missing ones by name."""

from __future__ import annotations

import json

from msgspec import structs

from sluice.shuffle.taskmanager.status.status import TaskManagerStatus
from tests.cli.rig import NOWHERE, run, taskmanager_serving
from tools.docs.sample_status import STATUS

SECOND = structs.replace(STATUS, taskmanager_id="tm-2", address="node-2:7337", state="draining")


def test_several_taskmanagers_have_a_line_each_and_sums_below():
    with taskmanager_serving(STATUS) as first, taskmanager_serving(SECOND) as second:
        result = run("status", f"127.0.0.1:{first}", f"127.0.0.1:{second}")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert any(each.split()[:2] == [f"127.0.0.1:{first}", "ready"] for each in lines)
    assert any(each.split()[:2] == [f"127.0.0.1:{second}", "draining,"] for each in lines)
    assert "4096" in result.stdout  # twice 2048 segments
    assert "Channels of gates" not in result.stdout
    assert "Connections" not in lines


def test_the_json_of_several_has_each_status_and_the_sum():
    with taskmanager_serving(STATUS) as first, taskmanager_serving(SECOND) as second:
        result = run("status", f"127.0.0.1:{first}", f"127.0.0.1:{second}", "--json")
    document = json.loads(result.stdout)
    assert document["schema"] == "sluice.status/1"
    found = [TaskManagerStatus.from_json(each["status"]) for each in document["taskmanagers"]]
    assert [structs.replace(each, warnings=()) for each in found] == [STATUS, SECOND]
    total = document["sum"]["network_pool"]["total_segments"]
    assert total == 2 * STATUS.network_pool.total_segments
    assert document["sum"]["partitions"][0]["committed_map_outputs"] == 16


def test_an_unreachable_one_is_named_and_the_others_are_shown():
    with taskmanager_serving(STATUS) as port:
        result = run("status", f"127.0.0.1:{port}", NOWHERE)
        document = json.loads(run("status", f"127.0.0.1:{port}", NOWHERE, "--json").stdout)
    assert result.exit_code == 1
    assert "unreachable" in result.stdout
    assert "Network memory" in result.stdout
    assert result.stderr.startswith(
        f"Error: 1 of 2 TaskManagers do not answer: http://{NOWHERE}: [Errno 111]"
    )
    assert result.stderr.count("\n") == 1
    assert [each["reachable"] for each in document["taskmanagers"]] == [True, False]


def test_nobody_that_answers_leaves_only_their_names():
    result = run("status", NOWHERE, "127.0.0.1:2")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: 2 of 2 TaskManagers do not answer: ")


def test_an_application_is_summed():
    name = STATUS.applications[0].application_id
    with taskmanager_serving(STATUS) as first, taskmanager_serving(SECOND) as second:
        urls = f"127.0.0.1:{first}", f"127.0.0.1:{second}"
        assert name in run("status", *urls, "--application", name).stdout
        missing = run("status", *urls, "--application", "nobody")
    assert missing.exit_code == 1
    assert "none of the 2 TaskManagers knows the application nobody" in missing.stderr
