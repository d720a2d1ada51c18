"""Snapshots of producers, transaction indexes: Kafka's dump tool reads ours, and a log of ours starts with Kafka's."""

import re
import signal
from pathlib import Path

import pytest
from confluent_kafka import Producer

from bench.peers.clients import RetryingClient
from bench.peers.systems import KAFKA
from bench.peers.tests.java_tools import dump_segments
from reference_broker.log.appending import BatchOrigin
from reference_broker.log.config import LogConfig
from reference_broker.log.opening import open_log
from reference_broker.log.tests.recovery_world import stopped
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.ports.node_ports import Now
from reference_broker.ports.slicing import run_to_end
from reference_broker.records.record import Record, build
from reference_broker.records.tests.markers import build_marker
from reference_broker.serve.disk import FileDisk

pytestmark = [pytest.mark.peer, pytest.mark.timeout(300)]

NOW = Now(0, 1_700_000_000_000)
LIMIT_S = 90.0
CONFIG = LogConfig(retention_ms=-1, producer_id_expiration_ms=10**15)


def _opened(folder: Path, *, clean: bool = True) -> UnifiedLog:
    return run_to_end(open_log(FileDisk(folder, 64), "t-0", CONFIG, NOW, clean))


def _send(log: UnifiedLog, producer_id: int, sequence: int, count: int) -> None:
    records = [Record(timestamp_ms=NOW.wall_ms, value=b"v")] * count
    who = {"producer_id": producer_id, "producer_epoch": 3, "base_sequence": sequence}
    log.append(NOW, build(records, is_transactional=True, **who), 0)  # type: ignore[arg-type]


def test_kafkas_dump_tool_reads_our_files(tmp_path: Path) -> None:
    log = _opened(tmp_path)
    _send(log, 7, 0, 4)
    _send(log, 9, 0, 2)
    marker = {"producer_id": 7, "producer_epoch": 3, "coordinator_epoch": 5, "timestamp_ms": NOW.wall_ms}
    log.append(NOW, build_marker(commit=False, **marker), 0, origin=BatchOrigin.BROKER)
    log.roll(NOW)
    _send(log, 7, 4, 3)
    stopped(log)
    folder = tmp_path / "t-0"
    shown = dump_segments([folder / f"{7:020d}.snapshot", folder / f"{0:020d}.txnindex"])
    rows = re.findall(
        r"producerId: (\d+) producerEpoch: 3 coordinatorEpoch: (-?\d+) currentTxnFirstOffset: (\S+) "
        r"lastTimestamp: (\d+) firstSequence: (\d+) lastSequence: (\d+) lastOffset: (\d+) offsetDelta: (\d+)",
        shown,
    )
    assert [(row[0], row[1], *row[3:]) for row in rows] == [
        ("7", "5", str(NOW.wall_ms), "0", "3", "3", "3"),
        ("9", "-1", str(NOW.wall_ms), "0", "1", "5", "1"),
    ]
    assert ["4" in row[2] for row in rows] == [False, True], "the open transaction of producer 9 began at offset 4"
    assert "version: 0 producerId: 7 firstOffset: 0 lastOffset: 6 lastStableOffset: 4" in shown
    damaged = folder / f"{10:020d}.snapshot"
    content = bytearray(damaged.read_bytes())
    content[30] ^= 1
    damaged.write_bytes(content)
    assert "CRC is no longer valid" in dump_segments([damaged])


def test_log_of_ours_starts_with_the_files_that_kafka_wrote(tmp_path: Path) -> None:
    with KAFKA.launched(tmp_path, 1, {}) as cluster:
        with RetryingClient(cluster.ports) as client:
            client.create_topic("t", 1, 1, LIMIT_S)
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "one"})
        producer.init_transactions(LIMIT_S)
        for commits in (True, False, True):
            producer.begin_transaction()
            for number in range(5):
                producer.produce("t", b"%d" % number)
            producer.flush(LIMIT_S)
            (producer.commit_transaction if commits else producer.abort_transaction)(LIMIT_S)
        process = cluster.members[0].process
        cluster.members[0].send_signal(signal.SIGTERM)
        assert process is not None
        process.wait(LIMIT_S)
        (snapshot,) = (path for path in tmp_path.rglob("t-0/*.snapshot") if path.stat().st_size > 10)
        copied = tmp_path / "copied"
        (copied / "t-0").mkdir(parents=True)
        for path in snapshot.parent.iterdir():
            (copied / "t-0" / path.name).write_bytes(path.read_bytes())
    log = _opened(copied)
    assert log.recovered.snapshot == f"t-0/{snapshot.name}"
    ((producer_id, known),) = log.producers.by_id.items()
    log.advance_high_watermark(log.log_end_offset)
    assert log.last_stable_offset == log.log_end_offset == 18
    assert [(transaction.producer_id, transaction.first_offset) for transaction in log.aborted_transactions(0, 18)] == [
        (producer_id, 6)
    ]
    for path in (copied / "t-0").glob("*.snapshot"):
        path.unlink()
    again = _opened(copied, clean=False).producers.by_id[producer_id]
    assert (again.producer_epoch, again.last_sequence) == (known.producer_epoch, known.last_sequence)
    assert (again.batch_metadata[-1:], again.coordinator_epoch) == (known.batch_metadata[-1:], known.coordinator_epoch)
