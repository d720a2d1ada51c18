"""Apache Kafka's own tools with our transaction coordinator: one reads its records, another queries it."""

from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from bench.peers.tests.java_tools import dump_segments, run_tool
from bench.peers.tests.nodes import reference_node
from bench.peers.tests.test_java_transactions import TRANSACTIONS
from reference_broker.transactions.tests.transaction_world import TransactionWorld

pytestmark = pytest.mark.peer


@pytest.mark.clause("X-2")
@pytest.mark.parametrize("version", [0, 2])
def test_dump_tool_decodes_the_transaction_log_with_either_value(tmp_path: Path, version: int) -> None:
    world = TransactionWorld(version=version)
    world.coordinate(0)
    id_ = world.transactional_id_in(0, "pay")
    owner = world.initialized_producer(id_)
    world.add_partitions(id_, owner, 0, 2, version=version)
    world.end_transaction(id_, owner, version=version)
    (path,) = (file for file in world.disk.files if file.startswith("__transaction_state-0/") and file.endswith(".log"))
    dumped = tmp_path / Path(path).name
    dumped.write_bytes(world.disk.files[path])
    shown = dump_segments([dumped], "--transaction-log-decoder", "--deep-iteration")
    assert "Could not" not in shown
    assert f'{{"type":"0","data":{{"transactionalId":"{id_}"}}}}' in shown
    assert '"producerId":1000' in shown
    assert [f'"transactionStatus":{number}' in shown for number in range(6)] == [True, True, True, False, True, False]
    assert '"transactionPartitions":[{"topic":"events","partitionIds":[0,2]}]' in shown
    assert f'"version":"{1 if version else 0}"' in shown
    assert f'"version":"{0 if version else 1}","data":{{"producerId"' not in shown


@pytest.mark.clause("X-12")
def test_kafkas_tool_lists_and_describes_transactions(tmp_path: Path) -> None:
    with reference_node(tmp_path, {"transaction.state.log.num.partitions": "2"}) as node:
        admin = AdminClient({"bootstrap.servers": node.bootstrap})
        admin.create_topics([NewTopic("events", 2, 1)])["events"].result(20)
        producer = confluent_kafka.Producer({"bootstrap.servers": node.bootstrap, "transactional.id": "payments"})
        producer.init_transactions(20)
        producer.begin_transaction()
        producer.produce("events", b"v", partition=1)
        assert producer.flush(20) == 0
        listed = run_tool(TRANSACTIONS, "--bootstrap-server", node.bootstrap, "list")
        assert any(line.split()[0] == "payments" and line.split()[-1] == "Ongoing" for line in listed.splitlines()[1:])
        described = run_tool(
            TRANSACTIONS, "--bootstrap-server", node.bootstrap, "describe", "--transactional-id", "payments"
        )
        assert "Ongoing" in described
        assert "events-1" in described
        producer.commit_transaction(20)
        listed = run_tool(TRANSACTIONS, "--bootstrap-server", node.bootstrap, "list")
        assert "CompleteCommit" in listed
