"""The tree of waits: each wait once, causes below what they hold up."""

from __future__ import annotations

import pytest
from msgspec import structs

from sluice.shuffle.taskmanager.status.table import render
from sluice.shuffle.taskmanager.status.waits_table import MAX_SHOWN, rows, tree, tree_lines
from sluice.shuffle.wait_status import WAIT_KINDS, WaitParty, WaitStatus, merged_waits
from tools.docs.sample_status import STATUS


def wait(waiter: str, resource: str, seconds: float | None = None, at: str = "") -> WaitStatus:
    return WaitStatus(
        WaitParty("gate", waiter), WaitParty("gate", resource), seconds, "text", "remedy", at
    )


def shown(*waits: WaitStatus) -> list[str]:
    return [f"{depth} {each.waiter.name}{each.resource.name}" for depth, each in tree(waits)]


def test_the_cause_stands_below_what_it_holds_up():
    assert shown(wait("b", "c"), wait("a", "b")) == ["0 ab", "1 bc"]


def test_each_wait_is_shown_once():
    branches = shown(wait("a", "c"), wait("b", "c"), wait("c", "d"), wait("c", "e"))
    assert branches == ["0 ac", "1 cd", "1 ce", "0 bc"]


@pytest.mark.parametrize("others", [[], [wait("x", "y")]])
def test_a_circle_ends(others):
    waits = [wait("a", "b"), wait("b", "c"), wait("c", "a"), *others]
    assert sorted(each[2:] for each in shown(*waits)) == sorted(
        ["ab", "bc", "ca", *["xy" for _ in others]]
    )


def test_names_of_another_process_are_other_things():
    assert shown(wait("a", "b", at="1"), wait("b", "c", at="2")) == ["0 ab", "0 bc"]
    lines = [text for _, text in tree_lines([wait("a", "b", at="1"), wait("b", "c", at="2")], 0)]
    assert lines[0] == "a waits for b at 1"


def test_a_terminal_gets_the_first_waits_and_the_number_of_the_others():
    waits = [wait(f"a{number}", "b", 1.0) for number in range(MAX_SHOWN + 2)]
    lines = list(tree_lines(waits, 5))
    assert len(lines) == 2 * MAX_SHOWN + 1
    assert lines[0] == ("", "a0 waits for b for 1.0 s")
    assert lines[-1] == ("", "7 more waits are left out; --json has up to 200.")


def test_a_pipe_gets_each_wait_in_a_row():
    lines = dict(render(STATUS, None))["Waits"]
    assert lines[0].split() == ["waiter", "waits", "for", "for", "reason", "remedy"]
    assert len(lines) == 1 + len(STATUS.waits)
    assert next(rows(STATUS.waits))[2] == "12.5 s"


def test_a_terminal_gets_a_branch_from_the_writer_to_the_reader():
    lines = dict(render(STATUS, 80))["Waits"]
    heads = [line.strip() for line in lines if " waits for " in line]
    assert heads == [
        "map output 8 of shuffle 3 of app-2 waits for network memory for 12.5 s",
        "which waits for application app-1",
        "which waits for gate 7 of 10.0.0.2:5000 of app-1",
        "which waits for reader 10.0.0.2:5000 of app-1 for 30.2 s",
    ]


def test_names_from_tenants_cannot_control_the_terminal():
    bad = structs.replace(STATUS, waits=(wait("a\x1b[31m\nb", "c"),))
    for width in (80, None):
        assert not any("\x1b" in line for line in dict(render(bad, width))["Waits"])


def test_the_longest_waits_of_several_processes_are_kept():
    waits = [wait("a", "b", None), *(wait("a", "b", float(number)) for number in range(250))]
    kept, omitted = merged_waits(waits, 3)
    assert [each.seconds for each in kept] == [float(each) for each in range(249, 49, -1)]
    assert omitted == 3 + 51
    assert merged_waits(waits[:2], 0) == ((waits[1], waits[0]), 0)


def test_kinds_are_listed_once_and_in_order():
    assert list(WAIT_KINDS) == sorted(set(WAIT_KINDS))
