"""Figures read from the output of Kafka's perf tests."""

import pytest

from bench.peers.node import PeerError
from bench.peers.perf_tests import ConsumerFigures, ProducerFigures, consumer_figures, producer_figures

PRODUCED = (
    "50 records sent, 10.0 records/sec (0.00 MB/sec), 1.0 ms avg latency, 1.0 ms max latency.\n"
    "3000000 records sent, 207856.4 records/sec (19.82 MB/sec), 12.50 ms avg latency, 387.00 ms max latency, "
    "2 ms 50th, 71 ms 95th, 158 ms 99th, 312 ms 99.9th.\n"
)
CONSUMED = (
    "WARNING: Exiting before consuming the expected number of messages: timeout (1000 ms) exceeded.\n"
    "2026-11-30 19:25:01:117, 2026-11-30 19:25:06:480, 286.1039, 53.3477, 3000016, 559391.3854, 3431, 1932, "
    "148.0869, 1552803.3126\n"
)


def test_figures_are_those_of_the_summary() -> None:
    assert producer_figures(PRODUCED) == ProducerFigures(3_000_000, 207856.4, 12.5, 387.0, 2, 71, 158, 312)
    assert consumer_figures(CONSUMED) == ConsumerFigures(3_000_016, 559391.3854, 1552803.3126)


def test_tool_that_prints_no_figures_is_an_error() -> None:
    with pytest.raises(PeerError, match="no summary: Exception in thread main"):
        producer_figures("Exception in thread main")
    with pytest.raises(PeerError, match="no figures: it printed nothing"):
        consumer_figures("")
