"""Task events of a local channel whose partition could not be had."""

from __future__ import annotations

import pytest

from sluice.protocol.errors import SluiceError
from sluice.shuffle.errors import UnknownProducer
from sluice.shuffle.gate.local_input_channel import LocalInputChannel


def test_an_event_for_a_channel_that_failed_before_it_was_found_has_no_producer():
    channel = LocalInputChannel(lambda: None)
    channel.send_task_event(1, b"kept")
    channel.fail(SluiceError("not found"))
    with pytest.raises(UnknownProducer):
        channel.send_task_event(2, b"too late")
    channel.release()
    channel.send_task_event(3, b"nobody asks")
