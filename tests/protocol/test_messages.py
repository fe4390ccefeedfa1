"""The message types: all of them are in the union, and their constants do not collide."""

from __future__ import annotations

from typing import get_args

import pytest

from sluice.protocol import copy_messages as c
from sluice.protocol import driver_messages as d
from sluice.protocol import messages as m
from sluice.protocol.codec import TYPE_IDS
from sluice.protocol.states import ALLOWED_WHEN_OPEN, ROLES

PARTS = {m.GateChannel}
"""Named tuples that are fields of messages, and no messages themselves."""

KINDS = sorted(get_args(m.Message), key=lambda kind: kind.__name__)


def test_every_named_tuple_is_a_message_or_a_part_of_one() -> None:
    defined = {
        value
        for module in (m, c, d)
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, tuple)
        and value.__module__ == module.__name__
    }
    assert defined - PARTS == set(KINDS)
    assert defined >= PARTS


def test_every_message_has_a_type_id() -> None:
    assert set(TYPE_IDS) == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_message_is_immutable(kind: type[m.Message]) -> None:
    message = kind._make(range(len(kind._fields)))
    for field in kind._fields:
        with pytest.raises(AttributeError):
            setattr(message, field, 0)


def test_equal_fields_do_not_make_messages_of_one_type() -> None:
    """Tuples compare by their fields, so the code tells messages apart by type, never by ``==``."""
    messages: list[m.Message] = [m.AddCredit(1, 2), m.BacklogAnnouncement(1, 2)]
    assert messages[0] == messages[1]
    assert len({type(message) for message in messages}) == 2


@pytest.mark.parametrize(
    "prefix",
    ["ROLE_", "FLOW_", "PARTITION_", "CONSUME_", ("DATA", "EVENT", "PRIORITY_", "BLOCKING_")],
)
def test_constants_of_one_field_differ(prefix: str | tuple[str, ...]) -> None:
    names = [name for name, value in vars(m).items() if name.isupper() and name.startswith(prefix)]
    assert len(names) > 1
    assert len({getattr(m, name) for name in names}) == len(names)


def test_every_role_has_its_messages_on_both_sides() -> None:
    roles = {value for name, value in vars(m).items() if name.startswith("ROLE_")}
    assert roles == ROLES
    assert {role for _, role in ALLOWED_WHEN_OPEN} == roles
