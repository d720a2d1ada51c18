"""Offsets in a transaction: Kafka's dump tool reads what we write, and librdkafka commits through us (X-8)."""

import re
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from bench.peers.tests.group_members import quiet
from bench.peers.tests.java_tools import JavaTools, dump_segments
from bench.peers.tests.nodes import reference_node
from reference_broker.groups.tests.coordinator_world import CoordinatorWorld

pytestmark = [
    pytest.mark.peer,
    pytest.mark.timeout(240),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}
LIMIT_S = 30.0


@pytest.mark.clause("X-8")
def test_dump_tool_decodes_pending_offsets_and_their_marker(tmp_path: Path) -> None:
    world = CoordinatorWorld()
    world.lead_offsets(0)
    group = world.group_in(0)
    world.transact(group, 5, 6, producer=77, epoch=3)
    world.end(0, commit=True, producer=77, epoch=3)
    (path,) = (file for file in world.disk.files if file.endswith(".log"))
    dumped = tmp_path / Path(path).name
    dumped.write_bytes(world.disk.files[path])
    shown = dump_segments([dumped], "--offsets-decoder", "--deep-iteration")
    assert "Could not" not in shown
    assert "Error" not in shown
    batches = [line for line in shown.splitlines() if line.startswith("baseOffset")]
    assert [("isTransactional: true" in line, "isControl: true" in line) for line in batches] == [
        (True, False),
        (True, True),
    ]
    assert all("producerId: 77 producerEpoch: 3" in line and "isvalid: true" in line for line in batches)
    assert "baseSequence: -1 lastSequence: -1" in batches[0]
    assert re.search(rf'key: \{{"type":"1","data":\{{"group":"{group}","topic":"t","partition":1\}}\}}', shown)
    assert 'payload: {"version":"3","data":{"offset":6,' in shown
    assert "endTxnMarker: COMMIT" in shown


@pytest.mark.clause("X-8")
@pytest.mark.clause("X-14")
def test_librdkafka_commits_offsets_in_its_transactions(tmp_path: Path) -> None:
    with quiet(), reference_node(tmp_path, SETTINGS) as running:
        JavaTools(running.bootstrap).create_topic("in", "--partitions", "1")
        where = [TopicPartition("in", 0)]
        plain = Producer({"bootstrap.servers": running.bootstrap})
        for value in range(4):
            plain.produce("in", str(value).encode())
        assert plain.flush(LIMIT_S) == 0
        consumer = Consumer(
            {
                "bootstrap.servers": running.bootstrap,
                "group.id": "g",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
            }
        )
        consumer.subscribe(["in"])
        assert len(consumer.consume(4, LIMIT_S)) == 4
        producer = Producer({"bootstrap.servers": running.bootstrap, "transactional.id": "tx"})
        producer.init_transactions(LIMIT_S)
        for offset, commits in ((2, True), (4, False), (3, True)):
            producer.begin_transaction()
            member = consumer.consumer_group_metadata()
            producer.send_offsets_to_transaction([TopicPartition("in", 0, offset)], member, LIMIT_S)
            if commits:
                producer.commit_transaction(LIMIT_S)
            else:
                producer.abort_transaction(LIMIT_S)
            (seen,) = consumer.committed(where, LIMIT_S)
            assert seen.offset == (offset if commits else 2)
        consumer.close()
