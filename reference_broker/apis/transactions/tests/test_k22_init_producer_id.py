"""InitProducerId, with and without a transactional ID."""

import pytest

from reference_broker.apis.tests.admin_world import AdminWorld
from reference_broker.apis.transactions import (
    k22_init_producer_id,
)
from reference_broker.apis.transactions.tests.transaction_requests import (
    init_producer_id,
    init_request,
    transactional_world,
)
from reference_broker.wire.errors import ErrorCode


@pytest.mark.clause("TransactionCoordinatorTest.shouldAcceptInitPidAndReturnNextPidWhenTransactionalIdIsNull")
@pytest.mark.clause("ProducerIdsIntegrationTest.testUniqueProducerIds")
def test_producer_ids_are_unique_across_restart() -> None:
    world = AdminWorld()
    given = [world.request(k22_init_producer_id, init_request()).producer_id for _ in range(1500)]
    again = world.restart(seed=1)
    given += [again.request(k22_init_producer_id, init_request()).producer_id for _ in range(10)]
    assert len(dict.fromkeys(given)) == len(given)
    assert given[:3] == [0, 1, 2]
    assert min(given[1500:]) == 2000


def test_init_producer_id_waits_for_durable_block_and_keeps_order() -> None:
    world = AdminWorld()
    world.auto = False
    calls = [world.send(k22_init_producer_id, init_request()) for _ in range(1002)]
    assert not any(call.responses for call in calls)
    world.metadata.commit()
    assert [len(call.responses) for call in calls[998:]] == [1, 1, 0, 0]
    world.metadata.commit()
    assert [(call.responses[0].producer_id, call.responses[0].producer_epoch) for call in calls] == [
        (number, 0) for number in range(1002)
    ]


def test_disk_error_fails_pending_init_producer_id_and_next_request_retries() -> None:
    world = AdminWorld()
    world.metadata.quorum.failing = 1
    response = world.request(k22_init_producer_id, init_request())
    assert (response.error_code, response.producer_id) == (ErrorCode.kafka_storage_error, -1)
    assert world.request(k22_init_producer_id, init_request()).producer_id == 0


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"transactional_id": ""}, ErrorCode.invalid_request),
        ({"transactional_id": "tx"}, ErrorCode.not_coordinator),
        ({"producer_id": 5}, ErrorCode.invalid_request),
        ({"producer_epoch": 5}, ErrorCode.invalid_request),
    ],
)
def test_invalid_init_producer_id_returns_error(fields: dict[str, int | str], error: ErrorCode) -> None:
    response = AdminWorld().request(k22_init_producer_id, init_request(**fields))
    assert (response.error_code, response.producer_id, response.producer_epoch) == (error, -1, -1)


def test_init_producer_id_without_transactional_id_ignores_given_id_and_epoch() -> None:
    response = AdminWorld().request(k22_init_producer_id, init_request(producer_id=5, producer_epoch=3))
    assert (response.error_code, response.producer_id, response.producer_epoch) == (ErrorCode.none, 0, 0)


@pytest.mark.parametrize(
    ("version", "error"), [(3, "invalid_producer_epoch"), (4, "producer_fenced"), (5, "producer_fenced")]
)
@pytest.mark.clause("KafkaApisTest.shouldReplaceProducerFencedWithInvalidProducerEpochInInitProducerIdWithOlderClient")
def test_init_producer_id_before_version_4_returns_invalid_producer_epoch(version: int, error: str) -> None:
    world = transactional_world()
    for _ in range(3):
        init_producer_id(world)
    assert init_producer_id(world, version, 0, 0).error_code.name == error
