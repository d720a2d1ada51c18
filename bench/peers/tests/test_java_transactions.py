"""Apache Kafka's ``kafka-transactions`` finds a transaction that hangs on the reference broker, and aborts it."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.peers.clients import connect, create_topic
from bench.peers.node import BrokerNode
from bench.peers.tests.java_tools import CONSUMER, FEATURES, JavaTools, run_tool
from bench.peers.tests.nodes import reference_node
from reference_broker.blocking.transport import Connection
from reference_broker.records.record import Record, build
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import NO_TOPIC_ID, FetchPartition, FetchRequest, FetchTopic
from reference_broker.wire.produce import ProducePartition, ProduceRequest, ProduceTopic

pytestmark = pytest.mark.peer

PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
PRODUCER, EPOCH = 4242, 3
TOPIC = "events"
TWO_HOURS_MS = 7_200_000
SHOWN = ("ProducerId", "ProducerEpoch", "LastSequence", "CurrentTransactionStartOffset")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerNode]:
    """No coordinator is involved, so a producer can begin a transaction that none knows, as before KIP-890."""
    unverified = {"transaction.partition.verification.enable": "false"}
    with reference_node(tmp_path_factory.mktemp("node"), unverified) as running:
        yield running


def rows_of(node: BrokerNode, *words: str) -> list[dict[str, str]]:
    """The table that the tool prints, a row each by its headers."""
    printed = run_tool(TRANSACTIONS, "--bootstrap-server", node.bootstrap, *words)
    lines = [line.split() for line in printed.splitlines() if line.strip()]
    return [dict(zip(lines[0], line, strict=False)) for line in lines[1:]]


def read_committed(raw: Connection) -> tuple[int, list[tuple[int, int]]]:
    """Return the offset up to which a reader of committed records reads, and the aborted transactions of its
    responses."""
    wanted = FetchTopic(TOPIC, NO_TOPIC_ID, [FetchPartition(0, 0, 1 << 20)])
    response: Any = raw.call(ApiKey.FETCH, 12, FetchRequest(max_wait_ms=0, isolation_level=1, topics=[wanted]))
    data = response.responses[0].partitions[0]
    return data.last_stable_offset, [
        (transaction.producer_id, transaction.first_offset) for transaction in data.aborted_transactions or ()
    ]


@pytest.mark.clause("X-12")
def test_transaction_that_hangs_is_found_and_aborted(
    node: BrokerNode, eventually: Callable[[Callable[[], bool]], bool]
) -> None:
    with connect(node.port) as raw:
        create_topic(raw, TOPIC, 1)
        began_ms = int(time.time() * 1000) - TWO_HOURS_MS
        batch = build(
            [Record(timestamp_ms=began_ms, key=None, value=b"v")],
            producer_id=PRODUCER,
            producer_epoch=EPOCH,
            base_sequence=0,
            is_transactional=True,
        )
        topics = [ProduceTopic(TOPIC, NO_TOPIC_ID, [ProducePartition(0, batch)])]
        response: Any = raw.call(ApiKey.PRODUCE, 9, ProduceRequest(-1, 10_000, topics, transactional_id="nobody"))
        assert response.responses[0].partitions[0].error_code == ErrorCode.none
        assert read_committed(raw) == (0, [])

        (producer,) = rows_of(node, "describe-producers", "--topic", TOPIC, "--partition", "0")
        shown = [
            producer[name] for name in ("ProducerId", "ProducerEpoch", "LastSequence", "CurrentTransactionStartOffset")
        ]
        assert shown == [str(PRODUCER), str(EPOCH), "0", "0"]

        (hanging,) = rows_of(node, "find-hanging", "--broker-id", "0")
        assert (hanging["Topic"], hanging["Partition"], hanging["ProducerId"]) == (TOPIC, "0", str(PRODUCER))

        rows_of(node, "abort", "--topic", TOPIC, "--partition", "0", "--start-offset", "0")

        assert eventually(lambda: read_committed(raw) == (2, [(PRODUCER, 0)]))
        assert rows_of(node, "find-hanging", "--broker-id", "0") == []
        (producer,) = rows_of(node, "describe-producers", "--topic", TOPIC, "--partition", "0")
        assert producer["CurrentTransactionStartOffset"] == "None"


@pytest.mark.parametrize("features", [(), ("--feature", "transaction.version=1")], ids=["version 2", "version 1"])
def test_java_producer_commits_and_a_java_consumer_reads_it(tmp_path: Path, features: tuple[str, ...]) -> None:
    """Without verification the broker would take the records too, so it is on here."""
    with reference_node(tmp_path) as node:
        if features:
            run_tool(FEATURES, "--bootstrap-server", node.bootstrap, "downgrade", *features)
        with connect(node.port) as raw:
            create_topic(raw, TOPIC, 3)
        words = ("--topic", TOPIC, "--num-records", "3000", "--record-size", "100", "--throughput", "1500")
        transactional = ("--transactional-id", "perf", "--transaction-duration-ms", "100")
        printed = run_tool(
            PERFORMANCE, *words, *transactional, "--producer-props", f"bootstrap.servers={node.bootstrap}"
        )
        assert "3000 records sent" in printed
        tools = JavaTools(node.bootstrap)
        read = tools.run(
            CONSUMER,
            "--topic",
            TOPIC,
            "--from-beginning",
            "--timeout-ms",
            "8000",
            "--max-messages",
            "3000",
            "--isolation-level",
            "read_committed",
        )
        assert len(read.splitlines()) == 3000
        (listed,) = rows_of(node, "list")
        assert (listed["TransactionalId"], listed["TransactionState"]) == ("perf", "CompleteCommit")
