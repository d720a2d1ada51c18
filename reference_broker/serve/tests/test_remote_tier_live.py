"""A broker process with a remote tier in a folder: a client's records are copied, deleted locally, and read back."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reference_broker.records.batch import validate
from reference_broker.remote_log.objects import ObjectKind, name_of

if TYPE_CHECKING:
    from reference_broker.serve.tests.conftest import Broker

pytestmark = pytest.mark.live

LIMIT_S = 60.0
RECORDS = 900
VALUE = bytes(10_000)


def test_produced_records_are_copied_deleted_locally_and_read_back(
    start_broker: Callable[..., "Broker"], tmp_path: Path
) -> None:
    import confluent_kafka
    from confluent_kafka.admin import AdminClient, NewTopic

    tier, data = tmp_path / "tier", tmp_path / "data"
    settings = {
        "remote.log.storage.system.enable": "true",
        "crucible.remote.store.url": str(tier),
        "remote.log.manager.task.interval.ms": "300",
        "log.retention.check.interval.ms": "500",
        "rlmm.config.remote.log.metadata.topic.num.partitions": "2",
    }
    words = [word for name, value in settings.items() for word in ("--config", f"{name}={value}")]
    broker = start_broker(*words, data="data")
    topic = {"remote.storage.enable": "true", "segment.bytes": "1048576", "local.retention.bytes": "1"}
    admin = AdminClient({"bootstrap.servers": broker.listen})
    admin.create_topics([NewTopic("events", 1, 1, config=topic)])["events"].result(30)
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.listen, "enable.idempotence": True})
    for number in range(RECORDS):
        producer.produce("events", number.to_bytes(8, "big") + VALUE)
    assert producer.flush(LIMIT_S) == 0

    def bases() -> list[int]:
        return sorted(int(path.stem) for path in data.glob("events-0/*.log"))

    deadline = time.monotonic() + LIMIT_S
    while bases()[0] < RECORDS * 3 // 4 or len(bases()) > 1:
        assert time.monotonic() < deadline, f"the oldest local segment still starts at {bases()[0]}"
        time.sleep(0.1)
    found = [(name, path) for path in tier.rglob("*") if (name := name_of(path.name)) is not None]
    logs = sorted((name.start_offset, path) for name, path in found if name.kind is ObjectKind.LOG)
    offset = 0
    for start_offset, path in logs:
        assert start_offset == offset
        offset = validate(path.read_bytes())[-1][1].last_offset + 1
    assert offset == bases()[0], "the folder has every record that is no longer here"
    for kind in set(ObjectKind) - {ObjectKind.TRANSACTION_INDEX}:
        assert sum(name.kind is kind for name, _ in found) == len(logs)

    for isolation in ("read_committed", "read_uncommitted"):
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": broker.listen, "group.id": "unused", "isolation.level": isolation}
        )
        consumer.assign([confluent_kafka.TopicPartition("events", 0, 0)])
        read: list[int] = []
        while len(read) < RECORDS and time.monotonic() < deadline:
            read += [
                int.from_bytes((message.value() or b"")[:8], "big") for message in consumer.consume(100, timeout=5)
            ]
        assert read == list(range(RECORDS))
        consumer.close()
