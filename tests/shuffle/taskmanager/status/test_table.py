"""The status as text: what a terminal of 80 columns and a pipe get."""

from __future__ import annotations

import re

import pytest
from msgspec import structs

from sluice.shuffle.histogram import Histogram
from sluice.shuffle.histogram_status import HistogramStatus
from sluice.shuffle.taskmanager.status.latencies_status import LatenciesStatus
from sluice.shuffle.taskmanager.status.status import WarningStatus
from sluice.shuffle.taskmanager.status.table import Table, approximate_time, render
from sluice.shuffle.taskmanager.store.store_status import RegionReadsStatus
from sluice.transport.settings import approximate_size
from tools.docs.sample_status import EMPTY_STATUS, STATUS

TITLES = [
    "",
    "Waits",
    "Data processes",
    "Network memory",
    "Storage",
    "Partitions",
    "Copies and moves",
    "Stored data verified",
    "Pipelined partitions",
    "Gates",
    "Channels of gates",
    "Local pools",
    "Connections",
    "Applications",
    "Latencies since start",
    "Traffic since start",
]


@pytest.mark.parametrize("width", [60, 80, 200, None])
def test_every_part_is_there_and_no_line_is_wider_than_the_terminal(width):
    parts = list(render(STATUS, width))
    assert [title for title, _ in parts] == TITLES
    lines = [line for _, part in parts for line in part]
    assert all(len(line) <= (width or 1000) for line in lines)
    assert not any("…" in line or "│" in line or "━" in line for line in lines)
    for shown in (
        "node-2:7337",
        "PIPELINED_BOUNDED",
        "33.5 s, now",
        "512 MiB",
        "64 KiB",
        "in 12 s",
    ):
        assert any(shown in line for line in lines)


@pytest.mark.parametrize(
    ("serves", "start"),
    [
        ("authenticated", "authenticated: "),
        ("this host", "this host only: "),
        ("anonymous", "ANONYMOUS: everyone who reaches a port can read and remove data"),
    ],
)
def test_the_head_tells_who_is_served(serves, start):
    _, head = next(render(structs.replace(STATUS, serves=serves), 80))
    assert head[-1].startswith(start)


def test_warnings_come_first_with_their_remedy():
    warning = WarningStatus("error", "Storage disk /b accepts no data: EIO.", "Check the disk")
    parts = dict(render(structs.replace(STATUS, warnings=(warning,))))
    assert list(parts)[1] == "Warnings"
    assert parts["Warnings"][1].startswith("error     Storage disk /b accepts no data: EIO.")
    assert parts["Warnings"][1].endswith("  Check the disk")


def test_parts_without_rows_are_left_out():
    titles = [title for title, _ in render(EMPTY_STATUS)]
    assert titles == ["", "Network memory", "Traffic since start"]


def test_a_process_that_is_down_stands_out_among_the_others():
    head, *rows = dict(render(STATUS))["Data processes"]
    cells = [re.split(" {2,}", line.strip()) for line in (head, *rows)]
    assert cells[0][:4] == ["process", "state", "pid", "up"]
    assert [row[:4] for row in cells[1:]] == [
        ["0", "ready", "4321", "51.5 s"],
        ["1", "ended (exit code 1)", "-", "0.0 s"],
    ]
    assert "625 ms" in cells[1]


def test_a_single_process_has_no_table_of_processes():
    single = structs.replace(STATUS, processes=())
    assert [title for title, _ in render(single)] == [t for t in TITLES if t != "Data processes"]


def test_the_columns_of_a_pipe_can_be_split():
    tables = dict(render(STATUS))
    head, *rows = (re.split(" {2,}", line.strip()) for line in tables["Pipelined partitions"])
    found = [dict(zip(head, row, strict=True)) for row in rows]
    assert [(row["attempt"], row["state"]) for row in found] == [("5", "open"), ("6", "finished")]
    assert found[0]["back-pressured"] == "33.5 s, now"
    for title, (first, *others) in tables.items():
        if title:
            count = len(re.split(" {2,}", first.strip()))
            assert {len(re.split(" {2,}", line.strip())) for line in others} == {count}


def test_numbers_are_aligned_to_the_right():
    table = Table("Sizes", "name used_bytes", "used_bytes")
    table.add("a", 5)
    table.add("longer", 12345)
    assert list(table.lines(None)) == [
        "name    used bytes",
        "a                5",
        "longer       12345",
    ]


def test_a_row_that_is_wider_than_the_terminal_is_a_paragraph_with_names():
    table = Table("Pools", "name first second third")
    table.add("p", 1, 22, 333)
    assert list(table.lines(22)) == ["name p  first 1", "    second 22", "    third 333"]
    assert list(table.lines(40)) == ["name  first  second  third", "p     1      22      333"]


def test_a_text_that_is_wider_than_the_terminal_is_broken_at_its_blanks():
    table = Table("Disks", "tier reason")
    table.add("disk", "it is slow and another one is too")
    assert list(table.lines(20)) == [
        "tier disk",
        "    reason it is",
        "    slow and another",
        "    one is too",
    ]


def test_characters_count_by_the_columns_that_they_take():
    table = Table("Names", "name bytes", "bytes")
    table.add("集計", 1)  # two columns each
    table.add("e\u0301tat", 22)  # an accent takes none
    assert list(table.lines(11)) == ["name  bytes", "集計      1", "e\u0301tat     22"]
    assert next(iter(table.lines(10))) == "name 集計"


def test_names_from_the_network_cannot_steer_the_terminal_or_add_columns():
    name = "a\x1b[31m\nb  c"
    status = structs.replace(
        EMPTY_STATUS,
        applications=(structs.replace(STATUS.applications[0], application_id=name),),
    )
    (row,) = dict(render(status))["Applications"][1:]
    assert row.split("  ")[0] == "a?[31m?b c"


def test_an_empty_cell_is_a_dash():
    table = Table("Empty", "first second")
    table.add("", "x")
    assert list(table.lines(None))[1] == "-      x"


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (1023 << 10, "1023 KiB"),
        (5 << 30, "5 GiB"),
    ],
)
def test_a_size_for_people(size_bytes, text):
    assert approximate_size(size_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 µs"),
        (0.000_061, "61 µs"),
        (0.001, "1.0 ms"),
        (0.0456, "46 ms"),
        (1.0, "1.0 s"),
        (30.2, "30 s"),
    ],
)
def test_times_are_short(seconds, text):
    assert approximate_time(seconds) == text


def test_only_latencies_that_were_measured_have_a_row():
    histogram = Histogram()
    histogram.record(2.0)
    latencies = LatenciesStatus(
        commit=HistogramStatus.taken(histogram),
        region_reads=(RegionReadsStatus("disk", "/data/1"),),
    )
    parts = dict(render(structs.replace(EMPTY_STATUS, latencies=latencies)))
    _, *rows = parts["Latencies since start"]
    assert [re.split("  +", row) for row in rows] == [
        ["commit", "1.5 s", "1.9 s", "2.0 s", "2.0 s", "1"]
    ]
    assert "Latencies since start" not in dict(render(EMPTY_STATUS))
