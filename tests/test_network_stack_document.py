"""The pages of docs/internals and docs/decisions name files and numbers that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sluice.protocol.credit import MAX_OVERDRAFT_EVENTS
from sluice.protocol.states import State
from sluice.shuffle.client.config import ClientConfig
from sluice.shuffle.gate.partition_request_client import MAX_WAITING_TASK_EVENTS
from sluice.shuffle.gate.task_events import MAX_KEPT_TASK_EVENTS
from sluice.shuffle.partition.event_buffers import MAX_EVENTS_BESIDE_POOL
from sluice.shuffle.partition.partition_states import PartitionState, SubpartitionState
from sluice.shuffle.taskmanager.config.network_memory_config import NetworkMemoryConfig
from sluice.shuffle.taskmanager.ingest.output_states import PipelinedState, StoredState
from sluice.shuffle.taskmanager.ingest.pipelined_credit import CREDIT_WINDOW_BUFFERS
from sluice.transport.config import TransportConfig

REPOSITORY = Path(__file__).parents[1]
DOCS = REPOSITORY / "docs"
PAGE = (DOCS / "internals" / "network-stack.md").read_text(encoding="utf-8")
DECISIONS = sorted((DOCS / "decisions").glob("[0-9]*.md"))
PAGES = [
    path.relative_to(DOCS).as_posix()
    for path in sorted([*(DOCS / "internals").glob("*.md"), *(DOCS / "decisions").glob("*.md")])
]
CODE = re.compile(r"`([^`\n]+)`")
PATH = re.compile(
    r"(?:protocol|transport|shuffle|spark_integration|tests|benchmarks|docs|tools)/[\w./-]+"
)
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
JAVA = {path.name for path in (REPOSITORY / "spark_integration" / "jvm").rglob("*.java")}


def page(name: str) -> str:
    """Read a page without its blocks of code."""
    return FENCE.sub("", (DOCS / name).read_text(encoding="utf-8"))


def test_the_network_stack_names_many_files():
    assert len(set(re.findall(r"`([\w/]+/[\w./]+\.py)`", PAGE))) > 20


@pytest.mark.parametrize("name", PAGES)
def test_every_path_that_a_page_names_exists(name):
    named = {each for each in CODE.findall(page(name)) if PATH.fullmatch(each)}
    results = {each for each in named if each.startswith("benchmarks/results/")}
    missing = [each for each in sorted(named - results) if not (REPOSITORY / each).exists()]
    assert not missing


@pytest.mark.parametrize("name", PAGES)
def test_every_java_file_that_a_page_names_exists(name):
    named = {each for each in CODE.findall(page(name)) if re.fullmatch(r"\w+\.java", each)}
    assert named <= JAVA


def test_no_decision_takes_a_number_twice_or_one_that_the_list_keeps_for_the_next():
    numbers = [int(path.name[:3]) for path in DECISIONS]
    assert len(set(numbers)) == len(numbers)
    listed = (DOCS / "decisions" / "index.md").read_text(encoding="utf-8")
    following = re.search(r"The next page is (\d{3})", listed)
    assert following is not None
    assert max(numbers) < int(following[1])


@pytest.mark.parametrize("path", DECISIONS, ids=lambda path: path.stem)
def test_a_decision_has_its_four_parts_and_a_row_in_the_list(path):
    text = path.read_text(encoding="utf-8")
    title = re.match(rf"# {path.name[:3]}: (.*)\n", text)
    assert title is not None
    parts = re.split(r"^## (.*)$", text, flags=re.MULTILINE)[1:]
    assert parts[::2] == ["Context", "Decision", "Alternatives considered", "Consequences"]
    assert all(part.strip() for part in parts[1::2])
    index = (DOCS / "decisions" / "index.md").read_text(encoding="utf-8")
    assert f"* {path.name[:3]} [{title[1]}]({path.name})\n" in index


@pytest.mark.parametrize(
    "states", [State, PartitionState, SubpartitionState, PipelinedState, StoredState]
)
def test_every_state_is_in_a_table(states):
    missing = [state.name for state in states if state.name not in PAGE]
    assert not missing


def test_every_setting_it_names_exists():
    named = set(re.findall(r"`(\w+_(?:seconds|bytes)|flow_control)`", PAGE))
    settings = {
        *NetworkMemoryConfig.model_fields,
        *TransportConfig.model_fields,
        *ClientConfig.model_fields,
    }
    assert named
    assert named <= settings


def test_numbers_of_the_document_are_those_of_the_code():
    memory = NetworkMemoryConfig()
    assert (memory.exclusive_buffers_per_channel, memory.floating_buffers_per_gate) == (2, 8)
    assert f"{MAX_KEPT_TASK_EVENTS} a channel" in PAGE
    assert f"{MAX_WAITING_TASK_EVENTS} a connection" in PAGE
    assert f"{MAX_OVERDRAFT_EVENTS} priority events on account" in PAGE
    assert f"{MAX_EVENTS_BESIDE_POOL} in the memory of a task" in PAGE
    assert f"at most {CREDIT_WINDOW_BUFFERS}." in " ".join(PAGE.split())
