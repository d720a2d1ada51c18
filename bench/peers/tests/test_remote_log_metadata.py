"""Apache Kafka's own formatter prints what this broker writes to ``__remote_log_metadata``."""

from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from bench.peers.tests.java_tools import CONSUMER, JavaTools
from bench.peers.tests.nodes import reference_node
from reference_broker.metadata.identifiers import REMOTE_LOG_METADATA_TOPIC
from reference_broker.remote_log.metadata.events import RemoteLogEvent, RemotePartitionDeleteState, encode
from reference_broker.remote_log.metadata.tests.remote_events import (
    DELETED,
    DELETING,
    FINISHED,
    copy_of,
    deletion,
    step,
)

pytestmark = pytest.mark.peer

FORMATTER = "org.apache.kafka.server.log.remote.metadata.storage.serialization.RemoteLogMetadataSerde"


def test_kafkas_formatter_prints_each_event(tmp_path: Path) -> None:
    copy = copy_of(7, 100, 199, (2, 100), (4, 150), by=4, attempt=3, partition=5)
    events: list[RemoteLogEvent] = [copy, *(step(copy, state) for state in (FINISHED, DELETING, DELETED))]
    events += [deletion(state, 5) for state in RemotePartitionDeleteState]
    with reference_node(tmp_path) as node:
        admin = AdminClient({"bootstrap.servers": node.bootstrap})
        admin.create_topics([NewTopic(REMOTE_LOG_METADATA_TOPIC, 1, 1)])[REMOTE_LOG_METADATA_TOPIC].result(20)
        producer = confluent_kafka.Producer({"bootstrap.servers": node.bootstrap})
        for event in events:
            producer.produce(REMOTE_LOG_METADATA_TOPIC, encode(event), partition=0)
        assert producer.flush(20) == 0
        words = ["--topic", REMOTE_LOG_METADATA_TOPIC, "--from-beginning"]
        formatter = f"{FORMATTER}$RemoteLogMetadataFormatter"
        shown = JavaTools(node.bootstrap).run(
            CONSUMER, *words, "--formatter", formatter, "--max-messages", str(len(events))
        )
    lines = shown.splitlines()
    assert len(lines) == len(events), shown
    for words_of_line, line in zip(WORDS, lines, strict=True):
        for word in words_of_line:
            assert word in line, f"{word} in {line}"


WORDS = [
    ("startOffset=100", "endOffset=199", "{2=100, 4=150}", "state=COPY_SEGMENT_STARTED", "id=AAAAAAAAAAAAAAAAAAAABw"),
    ("state=COPY_SEGMENT_FINISHED", "brokerId=1"),
    ("state=DELETE_SEGMENT_STARTED",),
    ("state=DELETE_SEGMENT_FINISHED",),
    ("state=DELETE_PARTITION_MARKED",),
    ("state=DELETE_PARTITION_STARTED",),
    ("state=DELETE_PARTITION_FINISHED",),
]
"""The content of each event's line."""
