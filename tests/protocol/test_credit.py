"""Credit arithmetic: single rules, and conservation over any order of what can happen."""

from collections import deque

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sluice.protocol.credit import (
    MAX_WITHHELD_BUFFERS,
    ReceiverCredit,
    SenderCredit,
    Uncounted,
    buffers_of_a_message,
)
from sluice.protocol.errors import CreditExceeded, CreditOverflow
from sluice.protocol.limits import MAX_CREDIT

EXCLUSIVE = 2


@pytest.mark.parametrize("initial", [0, 1, MAX_CREDIT])
def test_sender_starts_with_what_the_request_brought(initial: int) -> None:
    assert SenderCredit(initial).available == initial


def test_sender_adds_up_to_the_limit() -> None:
    credit = SenderCredit(3)
    credit.add(2)
    assert credit.available == 5
    credit.add(MAX_CREDIT - 5)
    assert credit.available == MAX_CREDIT


@pytest.mark.parametrize(("initial", "more"), [(1, MAX_CREDIT), (MAX_CREDIT, 1), (0, 2**32 - 1)])
def test_too_much_credit_changes_nothing(initial: int, more: int) -> None:
    credit = SenderCredit(initial)
    with pytest.raises(CreditOverflow) as caught:
        credit.add(more)
    assert (caught.value.value, caught.value.limit) == (initial + more, MAX_CREDIT)
    assert credit.available == initial


def test_a_request_with_too_much_credit() -> None:
    with pytest.raises(CreditOverflow) as caught:
        SenderCredit(MAX_CREDIT + 1)
    assert (caught.value.value, caught.value.limit) == (MAX_CREDIT + 1, MAX_CREDIT)


def test_receiver_announces_the_sum_once() -> None:
    credit = ReceiverCredit(EXCLUSIVE)
    assert credit.announce() == 0
    assert credit.free(3)
    assert credit.free(1)
    assert credit.announce() == 4
    assert credit.granted == EXCLUSIVE + 4
    assert credit.announce() == 0


@pytest.mark.parametrize("granted", [0, 1, 2, 7, 8, 9, 100, 1000])
def test_freed_buffers_are_announced_when_they_are_what_is_left_or_fill_a_message(
    granted: int,
) -> None:
    credit = ReceiverCredit(granted)
    for free in range(1, 50):
        enough = min(granted, buffers_of_a_message(granted + free))
        assert credit.free(1) == (free >= enough)
        assert enough <= MAX_WITHHELD_BUFFERS
    assert credit.announce() == 49


@pytest.mark.parametrize(
    ("channel", "message"),
    [(0, 4), (2, 4), (10, 4), (12, 4), (13, 5), (15, 5), (22, 8), (34, 12), (98, 32), (1000, 32)],
)
def test_a_message_takes_a_third_of_the_buffers_within_bounds(channel: int, message: int) -> None:
    assert buffers_of_a_message(channel) == message


def test_a_message_takes_a_third_of_the_most_credit_there_has_been() -> None:
    credit = SenderCredit(2)
    assert credit.most_of_a_message == 4
    credit.add(16)
    assert credit.most_of_a_message == 6
    credit.available = 0
    credit.add(3)
    assert credit.most_of_a_message == 6


def test_three_messages_are_under_way_in_a_channel_of_ten_buffers() -> None:
    """The first one is read and its credit announced while two others are on their way."""
    sender = SenderCredit(EXCLUSIVE)
    receiver = ReceiverCredit(EXCLUSIVE)
    assert receiver.free(8)  # floating ones
    sender.add(receiver.announce())
    messages: deque[int] = deque()

    def send() -> None:
        while sender.available:
            messages.append(min(sender.available, sender.most_of_a_message))
            sender.available -= messages[-1]

    send()
    assert list(messages) == [4, 4, 2]
    for _ in range(20):
        receiver.used(7, messages[0])
        due = receiver.free(messages.popleft())
        assert len(messages) >= 1  # the next one is on its way
        if due:
            sender.add(receiver.announce())
            send()
        assert sum(messages) >= 6


def test_without_free_buffers_there_is_nothing_to_announce() -> None:
    credit = ReceiverCredit(0)
    assert not credit.free(0)
    assert credit.announce() == 0
    assert credit.free(1)
    assert credit.announce() == 1


def test_data_uses_what_was_granted_and_no_more() -> None:
    credit = ReceiverCredit(1)
    credit.free(5)  # not announced, so the sender may not use it
    credit.used(7)
    with pytest.raises(CreditExceeded, match="channel 7"):
        credit.used(7)
    assert credit.granted == 0
    assert credit.announce() == 5
    credit.used(7)
    assert credit.granted == 4


def test_an_announcement_is_due_when_as_much_is_free_as_is_granted() -> None:
    credit = ReceiverCredit(4)
    assert not credit.used(1)  # granted 3, nothing to announce
    credit.free(2)
    assert credit.used(1)  # granted 2
    assert credit.announce() == 2
    assert not credit.used(1)  # granted 3, nothing to announce


def test_nothing_is_due_without_a_free_buffer_even_when_the_credit_is_used_up() -> None:
    credit = ReceiverCredit(1)
    assert not credit.used(1)
    assert credit.granted == 0
    assert credit.free(1)


def test_without_credit_nothing_is_used_up_and_nothing_announced() -> None:
    """The granted buffers stay the most that one message may take."""
    credit = Uncounted(EXCLUSIVE)
    for _ in range(3):
        assert not credit.used(7, EXCLUSIVE)
        assert credit.free(1)  # each time: a connection may stand still for it
        assert not credit.free(0)
        assert credit.announce() == 0
        assert (credit.granted, credit.unannounced) == (EXCLUSIVE, 0)


class Conservation(RuleBasedStateMachine):
    """A channel with both ends and two wires, on which things stay for as long as they like."""

    def __init__(self) -> None:
        super().__init__()
        self.buffers = EXCLUSIVE  # that belong to the channel
        self.sender = SenderCredit(EXCLUSIVE)
        self.receiver = ReceiverCredit(EXCLUSIVE)
        self.announcements: deque[int] = deque()
        self.data = 0  # buffers on the wire
        self.held = 0  # buffers that the consumer reads
        self.freed = 0
        self.announced = 0
        self.sent = 0

    @rule(count=st.integers(0, 8))
    def floating_buffers_come(self, count: int) -> None:
        self.buffers += count
        self._free(count)

    @rule(count=st.integers(1, 8))
    def consumer_recycles(self, count: int) -> None:
        count = min(count, self.held)
        self.held -= count
        self._free(count)

    def _free(self, count: int) -> None:
        due = self.receiver.free(count)
        self.freed += count
        self._check(due)

    def _check(self, due: bool) -> None:
        """Never silent when the sender has nothing left and there is something to announce."""
        receiver = self.receiver
        enough = min(
            receiver.granted, buffers_of_a_message(receiver.granted + receiver.unannounced)
        )
        assert due == (self.receiver.unannounced >= max(1, enough))

    @rule()
    def receiver_announces(self) -> None:
        waiting = self.receiver.unannounced
        credit = self.receiver.announce()
        assert credit == waiting
        if credit:
            self.announcements.append(credit)
            self.announced += credit

    @precondition(lambda self: self.announcements)
    @rule()
    def announcement_arrives(self) -> None:
        self.sender.add(self.announcements.popleft())

    @rule(backlog=st.integers(1, 8))
    def sender_sends(self, backlog: int) -> None:
        for _ in range(min(backlog, self.sender.available)):
            self.sender.available -= 1
            self.data += 1
            self.sent += 1

    @precondition(lambda self: self.data)
    @rule()
    def data_arrives(self) -> None:
        self._check(self.receiver.used(1))
        self.data -= 1
        self.held += 1

    @precondition(lambda self: not self.receiver.granted)
    @rule()
    def data_without_credit_is_refused(self) -> None:
        with pytest.raises(CreditExceeded):
            self.receiver.used(1)

    @invariant()
    def nothing_is_negative(self) -> None:
        assert min(self.sender.available, self.receiver.granted, self.receiver.unannounced) >= 0

    @invariant()
    def sent_is_at_most_granted(self) -> None:
        assert self.sent <= EXCLUSIVE + self.announced

    @invariant()
    def announcements_sum_to_what_became_free(self) -> None:
        assert self.announced + self.receiver.unannounced == self.freed

    @invariant()
    def what_was_granted_is_somewhere(self) -> None:
        under_way = sum(self.announcements) + self.sender.available + self.data
        assert self.receiver.granted == under_way

    @invariant()
    def no_buffer_is_promised_twice(self) -> None:
        assert self.receiver.granted + self.receiver.unannounced + self.held == self.buffers


TestConservation = Conservation.TestCase
