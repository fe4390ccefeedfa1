"""The memory of control parts: it grows with what arrives, and one budget counts all of it."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sluice.protocol import schema as m
from sluice.protocol.control_memory import ControlAccount, ControlMemory, ControlMemoryExhausted
from sluice.protocol.errors import ErrorCode, MalformedMessage, SluiceError
from sluice.protocol.framing import FrameDecoder
from sluice.protocol.limits import (
    FIRST_CONTROL_BYTES,
    HEAD_BYTES,
    MAX_CONTROL_BYTES,
    MAX_HANDSHAKE_CONTROL_BYTES,
)
from sluice.protocol.schema import encode
from tests.support.decoding import RecordingSink, feed, new_decoder

CAPACITY = 100
LONG = m.BeginRegion(1, 0, 0, [2**40] * 20_000, 7)


def unexpected(error: SluiceError) -> None:
    raise AssertionError(f"evicted: {error}")


def claim(length: int, sent: int) -> bytes:
    """Return the beginning of a frame that announces a control part."""
    return length.to_bytes(4, "big") + bytes(4) + b"\x96" * sent


# ---- the decoder -----------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [0, 7, HEAD_BYTES, 50_000, 1_000_000])
def test_a_claim_takes_memory_for_the_bytes_that_have_come(sent: int) -> None:
    budget = ControlMemory(2 * MAX_CONTROL_BYTES)
    decoder = new_decoder(RecordingSink())
    decoder.account = budget.open("", unexpected)
    begin = claim(MAX_CONTROL_BYTES, sent)
    tracemalloc.start()
    try:
        feed(decoder, begin)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    most = max(FIRST_CONTROL_BYTES, 2 * sent)
    assert 0 < budget.used_bytes <= most
    assert taken <= most + 4096


def test_before_the_handshake_a_connection_has_two_small_buffers() -> None:
    decoder = FrameDecoder(RecordingSink(), 100)
    feed(decoder, claim(MAX_HANDSHAKE_CONTROL_BYTES, 4000))
    assert len(decoder.get_buffer()) <= MAX_HANDSHAKE_CONTROL_BYTES


def test_a_short_control_part_is_not_counted() -> None:
    budget = ControlMemory(0)
    decoder = new_decoder(sink := RecordingSink())
    decoder.account = budget.open("", unexpected)
    feed(decoder, encode(m.Ping(1)))
    assert sink.frames == [(m.Ping(1), b"")]


def test_a_decoded_control_part_gives_its_memory_back_before_its_message_is_taken() -> None:
    budget = ControlMemory(MAX_CONTROL_BYTES)
    used: list[int] = []
    decoder = new_decoder(RecordingSink(on_message=lambda _: used.append(budget.used_bytes)))
    decoder.account = budget.open("", unexpected)
    feed(decoder, encode(LONG) * 3)
    assert used == [0, 0, 0]


def test_a_control_part_without_room_is_refused_with_value_limit_and_remedy() -> None:
    budget = ControlMemory(20_000)
    decoder = new_decoder(sink := RecordingSink())
    decoder.account = budget.open("", unexpected)
    with pytest.raises(ControlMemoryExhausted) as caught:
        feed(decoder, encode(LONG))
    assert (caught.value.value, caught.value.limit) == (4 * FIRST_CONTROL_BYTES, 20_000)
    assert "max_control_memory_bytes" in caught.value.remedy
    assert caught.value.code is ErrorCode.LIMIT_EXCEEDED
    assert caught.value.retryable
    assert sink.frames == []
    decoder.close()
    assert budget.used_bytes == 0


def test_a_closed_decoder_has_given_everything_back() -> None:
    budget = ControlMemory(MAX_CONTROL_BYTES)
    decoder = new_decoder(RecordingSink())
    decoder.account = budget.open("", unexpected)
    feed(decoder, claim(MAX_CONTROL_BYTES, 30_000))
    assert budget.used_bytes > 0
    decoder.close()
    assert budget.used_bytes == 0
    assert not decoder.in_frame or decoder.missing_bytes == 0


def test_a_control_part_that_cannot_be_decoded_is_counted_until_the_close() -> None:
    budget = ControlMemory(MAX_CONTROL_BYTES)
    decoder = new_decoder(RecordingSink())
    decoder.account = budget.open("", unexpected)
    with pytest.raises(MalformedMessage):
        feed(decoder, claim(30_000, 30_000))
    assert budget.used_bytes == 30_000
    decoder.close()
    assert budget.used_bytes == 0


# ---- who gives way ---------------------------------------------------------------------------


def test_the_largest_gives_way_to_a_smaller_one() -> None:
    budget = ControlMemory(CAPACITY)
    told: list[SluiceError] = []
    large, small = budget.open("a", told.append), budget.open("b", unexpected)
    large.reserve(90)
    small.reserve(20)
    assert (large.held_bytes, small.held_bytes, budget.used_bytes) == (0, 20, 20)
    (error,) = told
    assert isinstance(error, ControlMemoryExhausted)
    assert (error.value, error.limit) == (90, CAPACITY)
    assert budget.refused_total == 1


def test_one_that_would_be_the_largest_is_refused() -> None:
    budget = ControlMemory(CAPACITY)
    first, second = budget.open("a", unexpected), budget.open("b", unexpected)
    first.reserve(60)
    second.reserve(40)
    with pytest.raises(ControlMemoryExhausted) as caught:
        second.reserve(30)
    assert (caught.value.value, caught.value.limit) == (70, CAPACITY)
    assert (first.held_bytes, second.held_bytes) == (60, 40)


def test_many_connections_of_one_application_count_together() -> None:
    """Ten small ones of a greedy application give way to a larger one of another."""
    budget = ControlMemory(CAPACITY)
    told: list[SluiceError] = []
    many = [budget.open("greedy", told.append) for _ in range(10)]
    for each in many:
        each.reserve(10)
    modest = budget.open("modest", unexpected)
    modest.reserve(40)
    assert modest.held_bytes == 40
    assert len(told) == 4
    assert budget.used_bytes == CAPACITY


def test_within_an_application_the_largest_gives_way() -> None:
    budget = ControlMemory(CAPACITY)
    told: list[SluiceError] = []
    large, small = budget.open("a", told.append), budget.open("a", unexpected)
    large.reserve(80)
    small.reserve(30)
    assert (large.held_bytes, small.held_bytes) == (0, 30)
    assert len(told) == 1


def test_a_closed_account_is_told_of_nothing() -> None:
    budget = ControlMemory(CAPACITY)
    account = budget.open("a", unexpected)
    account.reserve(CAPACITY)
    account.close()
    account.close()
    account.release(5)
    assert budget.used_bytes == 0
    budget.open("b", unexpected).reserve(CAPACITY)


class Budget(RuleBasedStateMachine):
    """Any order of reservations and releases: bytes are conserved, and never above the limit."""

    def __init__(self) -> None:
        super().__init__()
        self.budget = ControlMemory(CAPACITY)
        self.held: dict[ControlAccount, int] = {}

    accounts = st.integers(0, 7)

    @rule(owner=st.sampled_from("abc"))
    def open(self, owner: str) -> None:
        account: ControlAccount

        def evicted(error: SluiceError) -> None:
            assert self.held.pop(account) > 0  # its connection closes

        account = self.budget.open(owner, evicted)
        self.held[account] = 0

    def chosen(self, number: int) -> ControlAccount:
        return list(self.held)[number % len(self.held)]

    def sum_of(self, owner: str) -> int:
        return sum(count for account, count in self.held.items() if account.owner == owner)

    @precondition(lambda self: self.held)
    @rule(number=accounts, count=st.integers(1, 60))
    def reserve(self, number: int, count: int) -> None:
        account = self.chosen(number)
        before = dict(self.held)
        own = self.sum_of(account.owner) + count
        try:
            account.reserve(count)
        except ControlMemoryExhausted:
            # Nobody is refused whose application would have less than another still has.
            assert all(self.sum_of(owner) <= own for owner in "abc")
            assert all(
                held <= self.held[account] + count
                for each, held in self.held.items()
                if each.owner == account.owner
            )
        else:
            self.held[account] += count
            assert sum(before.values()) + count > CAPACITY or len(before) == len(self.held)

    @precondition(lambda self: self.held)
    @rule(number=accounts, count=st.integers(0, 60))
    def release(self, number: int, count: int) -> None:
        account = self.chosen(number)
        account.release(count)
        self.held[account] = max(0, self.held[account] - count)

    @precondition(lambda self: self.held)
    @rule(number=accounts)
    def close(self, number: int) -> None:
        account = self.chosen(number)
        account.close()
        del self.held[account]

    @invariant()
    def bytes_are_conserved(self) -> None:
        assert {each: each.held_bytes for each in self.held} == self.held
        assert self.budget.used_bytes == sum(self.held.values()) <= CAPACITY


TestBudget = Budget.TestCase
