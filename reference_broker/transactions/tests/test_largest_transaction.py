"""A transaction with as many partitions as a record can hold."""

import pytest

from reference_broker.log.config import LogConfig
from reference_broker.log.opening import open_log
from reference_broker.metadata.identifiers import TRANSACTION_TOPIC
from reference_broker.ports.slicing import run_to_end
from reference_broker.transactions.tests.transaction_world import TransactionWorld
from reference_broker.transactions.transaction_metadata import TransactionState
from reference_broker.wire.errors import ErrorCode


@pytest.mark.clause("X-9")
def test_largest_transaction_can_be_ended() -> None:
    """The record of its end is larger than that of the open transaction: it has the version of the client."""
    world = TransactionWorld()
    config = LogConfig(cleanup_policy="compact", segment_bytes=1000)
    world.coordinate(0, run_to_end(open_log(world.disk, f"{TRANSACTION_TOPIC}-0", config, world.now(), True)))
    id_ = world.transactional_id_in(0)
    owner = world.initialized_producer(id_)
    added = 0
    while world.add_partitions(id_, owner, added, version=0) == [ErrorCode.none]:
        added += 1
    assert added > 100
    assert world.end_transaction(id_, owner) == [(ErrorCode.none, (owner[0], 1))]
    assert world.transaction(id_).state is TransactionState.COMPLETE_COMMIT
