"""Exceptions of the blocking consumer when tombstones may have been missed (H-3)."""

import time
from pathlib import Path

import pytest

from reference_broker.blocking.consumer import BlockingConsumer, InvalidOffsetError, TombstonesMissedError
from reference_broker.blocking.tests.raw_topics import call, create_topic
from reference_broker.client.group_consumer import ConsumerConfig
from reference_broker.client.leader_fetches import FetchSettings
from reference_broker.client.metadata_cache import NodeAddress
from reference_broker.client.partitions import TopicPartition
from reference_broker.records.record import Record, build
from reference_broker.serve.tests.conftest import Broker
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.produce import ProducePartition, ProduceRequest, ProduceTopic

SETTINGS = {
    "crucible.tombstone.horizon.enable": "true",
    "log.cleanup.policy": "compact",
    "log.segment.bytes": 700,
    "log.cleaner.backoff.ms": 50,
    "log.cleaner.min.cleanable.ratio": 0.01,
    "log.cleaner.delete.retention.ms": 200,
}


@pytest.mark.clause("H-3")
def test_poll_raises_missed_tombstones_once_with_partitions() -> None:
    fetch = FetchSettings(tombstone_horizon=True)
    config = ConsumerConfig((NodeAddress(-1, "127.0.0.1", 1),), metadata_epoch=False, fetch=fetch)
    where = TopicPartition("t", 3)
    with BlockingConsumer(config) as reader:
        reader.consumer.partitions.add([where])
        reader.consumer.partitions.held[where].missed_tombstones = True
        with pytest.raises(TombstonesMissedError, match=r"tombstones of t-3 may have been missed") as raised:
            reader.poll(0)
        assert raised.value.partitions == (where,)
        assert isinstance(raised.value, InvalidOffsetError)
        assert raised.value.error is ErrorCode.offset_out_of_range
        assert reader.poll(0) == []


def write(node: NodeAddress, key: str, value: str | None) -> None:
    record = Record(timestamp_ms=1, key=key.encode(), value=None if value is None else value.encode())
    rows = [ProducePartition(0, build([record]))]
    [response] = call(node, 0, 9, ProduceRequest(-1, 5000, [ProduceTopic("t", bytes(16), rows)])).responses
    assert response.partitions[0].error_code == ErrorCode.none


@pytest.mark.live
@pytest.mark.nightly
@pytest.mark.clause("H-1", "H-3", "H-5")
def test_reader_stopped_beyond_tombstone_raises_missed_tombstones(tmp_path: Path) -> None:
    """The broker has no metadata epochs, so it announces none of KIP-232's drafts, and this one all the same."""
    words = [word for key, value in SETTINGS.items() for word in ("--config", f"{key}={value}")]
    started = Broker(tmp_path / "data", tmp_path / "log", *words)
    node, held, deletions = NodeAddress(-1, *started.address), dict[bytes | None, bytes](), 0
    fetch = FetchSettings(tombstone_horizon=True, max_wait_ms=50)
    try:
        create_topic(node, "t", 1)
        write(node, "gone", "1")
        with BlockingConsumer(ConsumerConfig((node,), metadata_epoch=False, fetch=fetch)) as reader:
            reader.assign([TopicPartition("t", 0)])
            until = time.monotonic() + 30
            while not held and time.monotonic() < until:
                held |= {each.key: each.value or b"" for each in reader.poll(200)}
            assert held == {b"gone": b"1"}
            write(node, "k", "")  # It completes a fetch that the reader may have in flight.
            time.sleep(0.3)
            write(node, "gone", None)
            for number in range(60):
                write(node, "k", f"{number}" * 30)
                time.sleep(0.02)
            while (not deletions or b"k" not in held) and time.monotonic() < until:
                try:
                    held |= {each.key: each.value or b"" for each in reader.poll(200)}
                except TombstonesMissedError:
                    held.clear()
                    deletions += 1
    finally:
        started.kill()
    assert (deletions, list(held)) == (1, [b"k"])
