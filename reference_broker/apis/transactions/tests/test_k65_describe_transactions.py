"""DescribeTransactions."""

import pytest
from kio.schema.describe_transactions.v0.request import DescribeTransactionsRequest

from reference_broker.apis.transactions import (
    k65_describe_transactions,
)
from reference_broker.apis.transactions.tests.transaction_requests import (
    ID,
    describe_transactions,
    init_producer_id,
    transactional_world,
)
from reference_broker.wire.errors import Error, ErrorCode
from reference_broker.wire.messages import encode_response


@pytest.mark.clause("X-12")
@pytest.mark.clause("TransactionCoordinatorTest.testDescribeTransactionsWithEmptyTransactionalId")
def test_describe_unknown_transactional_id_returns_error() -> None:
    world = transactional_world()
    assert [each.error_code.name for each in describe_transactions(world, "nobody", "", "nobody")] == [
        "transactional_id_not_found",
        "invalid_request",
    ]


@pytest.mark.parametrize("started_ms", [1 << 62, -(1 << 62)])
def test_damaged_start_time_fails_only_its_description(started_ms: int) -> None:
    world = transactional_world()
    init_producer_id(world)
    entry = world.broker.transactions.find_metadata(ID)
    assert not isinstance(entry, Error)
    entry.current = entry.current._replace(started_ms=started_ms)
    damaged, unknown = describe_transactions(world, ID, "nobody")
    assert (damaged.error_code, unknown.error_code) == (ErrorCode.none, ErrorCode.transactional_id_not_found)


def test_id_without_transaction_has_no_start_time() -> None:
    world = transactional_world()
    init_producer_id(world)
    response = world.request(k65_describe_transactions, DescribeTransactionsRequest(transactional_ids=(ID,)))
    frame = b"".join(encode_response(65, 0, 7, response))
    assert b"\xff" * 8 in frame, "-1, as in Kafka"
