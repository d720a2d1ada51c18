"""Kafka's producer perf test: its last line is read, a run that lost records is no result."""

from pathlib import Path

import pytest

from bench.peers.node import PeerError
from bench.peers.stock_clients import producer_perf

pytestmark = pytest.mark.live

LINE = (
    "5000000 records sent, 412345.678900 records/sec (39.32 MB/sec), 12.34 ms avg latency, 300.00 ms max latency, "
    "10 ms 50th, 20 ms 95th, 30 ms 99th, 40 ms 99.9th.\n"
)


def _java(folder: Path, output: str, status: int = 0) -> None:
    fake = folder / "java"
    fake.write_text(f"#!/bin/sh\ncat <<'END'\n{output}END\nexit {status}\n")
    fake.chmod(0o755)


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr("bench.peers.kafka.kafka_classpath", lambda: "none")
    return tmp_path


def test_summary_line_is_read(java: Path) -> None:
    _java(java, "100 records sent, 20.0 records/sec (0.00 MB/sec), 1.0 ms avg latency, 1.0 ms max latency.\n" + LINE)
    assert producer_perf("127.0.0.1:1", "t", 5_000_000, 100) == 412345.6789


def test_fewer_records_than_requested_is_error(java: Path) -> None:
    _java(java, LINE)
    with pytest.raises(PeerError, match="sent 5000000 of 6000000"):
        producer_perf("127.0.0.1:1", "t", 6_000_000, 100)


def test_failing_tool_error_has_last_line(java: Path) -> None:
    _java(java, "org.apache.kafka.common.errors.TimeoutException: no metadata\n", status=1)
    with pytest.raises(PeerError, match="no metadata"):
        producer_perf("127.0.0.1:1", "t", 1, 100)


def test_transactions_get_an_id_and_their_length(java: Path) -> None:
    _java(java, LINE)
    (java / "java").write_text((java / "java").read_text().replace("#!/bin/sh", f'#!/bin/sh\necho "$@" > {java}/words'))
    producer_perf("127.0.0.1:1", "t", 5_000_000, 100, transaction_ms=50)
    words = (java / "words").read_text()
    assert "--transactional-id id-of-t --transaction-duration-ms 50" in words
    producer_perf("127.0.0.1:1", "t", 5_000_000, 100)
    assert "--transaction" not in (java / "words").read_text()
