"""Reading the TaskManagers' metrics pages, as the daemon writes them."""

from __future__ import annotations

import http.server
import threading

import pytest
from msgspec import structs
from prometheus_client import generate_latest

from sluice.shuffle.counters import Counters
from sluice.shuffle.taskmanager.metrics.metrics import registry
from tests.support.metrics import MetricMissing, Moved, parse, scrape
from tools.docs.sample_status import STATUS


def page(counters: Counters) -> str:
    """A daemon's whole page, over given counters."""
    status = structs.replace(STATUS, counters=counters)
    return generate_latest(registry(lambda: status)).decode()


COUNTERS = Counters(
    producer_bytes_in=1000,
    peer_bytes_out=300,
    peer_bytes_in=400,
    consumer_bytes_out_local=600,
    consumer_bytes_out_remote=401,
    consumer_buffers_out_local=6,
    consumer_buffers_out_remote=5,
)
MOVED = Moved(
    written_bytes=1000,
    read_bytes_local=600,
    read_bytes_remote=401,
    read_buffers_local=6,
    read_buffers_remote=5,
    peer_bytes=300,
    messages=sum(each.messages_in + each.messages_out for each in STATUS.traffic),
)


def test_the_counts_of_the_daemon_are_read():
    assert parse(page(COUNTERS)) == MOVED
    assert MOVED.read_bytes == 1001


def test_counts_beyond_the_precision_of_the_exposition_stay_exact():
    counters = Counters(producer_bytes_in=10**15 + 1)
    assert parse(page(counters)).written_bytes == 10**15 + 1


def test_a_page_without_a_metric_is_an_error_and_not_zero():
    text = page(COUNTERS).replace("sluice_sent_buffers_total", "something_else_total")
    with pytest.raises(MetricMissing, match="sluice_sent_buffers_total"):
        parse(text)


def test_scrape_adds_up_the_pages():
    body = page(COUNTERS).encode()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/metrics"
        try:
            assert scrape([url, url]) == MOVED + MOVED
        finally:
            server.shutdown()
            thread.join()
