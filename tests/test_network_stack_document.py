"""docs/network-stack.md names what is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sluice.protocol.states import State
from sluice.shuffle.client.config import ClientConfig
from sluice.shuffle.gate.partition_request_client import MOST_WAITING_TASK_EVENTS
from sluice.shuffle.gate.task_events import MAX_KEPT_TASK_EVENTS
from sluice.shuffle.partition.pipelined_subpartition import MAX_QUEUED_EVENTS
from sluice.shuffle.partition.states import PartitionState, SubpartitionState
from sluice.shuffle.taskmanager.ingest.pipelined_credit import CREDIT_WINDOW_BUFFERS
from sluice.shuffle.taskmanager.ingest.states import PipelinedState, StoredState
from sluice.shuffle.taskmanager.sections import NetworkMemoryConfig
from sluice.transport.config import TransportConfig

REPOSITORY = Path(__file__).parents[1]
PAGE = (REPOSITORY / "docs" / "network-stack.md").read_text(encoding="utf-8")
FILES = sorted(set(re.findall(r"`([\w/]+/[\w./]+\.py)`", PAGE)))
LINKS = sorted(set(re.findall(r"\]\(([^)#:]+)\)", PAGE)))


def test_it_names_many_files():
    assert len(FILES) > 40


@pytest.mark.parametrize("file", FILES)
def test_every_file_it_names_exists(file):
    assert (REPOSITORY / file).is_file()


@pytest.mark.parametrize("link", LINKS)
def test_every_link_leads_somewhere(link):
    assert (REPOSITORY / "docs" / link).exists()


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
    assert named <= settings
    assert len(named) > 6


def test_its_numbers_are_those_of_the_code():
    memory = NetworkMemoryConfig()
    assert (memory.exclusive_buffers_per_channel, memory.floating_buffers_per_gate) == (2, 8)
    assert f"{MAX_KEPT_TASK_EVENTS} a channel" in PAGE
    assert f"{MOST_WAITING_TASK_EVENTS} a connection" in PAGE
    assert f"| {MAX_QUEUED_EVENTS}, then the partition fails" in PAGE
    assert CREDIT_WINDOW_BUFFERS == 16
    assert "16 at\nthe most" in PAGE
