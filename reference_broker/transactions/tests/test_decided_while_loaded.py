"""A transaction that ends while its coordinator resumes what it has just loaded."""

from reference_broker.transactions.coordinator import EndRequest
from reference_broker.transactions.tests.transaction_world import TransactionWorld
from reference_broker.transactions.transaction_metadata import TransactionState
from reference_broker.transactions.transaction_state_manager import TransactionStateManager
from reference_broker.wire.errors import ErrorCode


def _one_event(world: TransactionWorld) -> None:
    number = min(world.timers, key=lambda one: (world.timers[one][0], one))
    world.timers.pop(number)[1]()


def test_markers_of_transaction_ended_during_load_are_sent_once() -> None:
    """The end is durable before the coordinator resumes the transactions of its predecessor."""
    world = TransactionWorld()
    world.coordinate(0)
    id_ = world.transactional_id_in(0)
    owner = world.initialized_producer(id_)
    assert world.add_partitions(id_, owner, 0) == [ErrorCode.none]
    world.coordinate(0, world.stop_leading(0), epoch=1)
    while not isinstance(world.transactions.find(id_), TransactionStateManager):
        _one_event(world)
    responses: list[tuple[object, object]] = []
    request = EndRequest(id_, owner, commits=True, client_version=2)
    world.transactions.end_transaction(request, lambda error, next_owner: responses.append((error, next_owner)))
    assert world.transaction(id_).state is TransactionState.PREPARE_COMMIT, "the case is another one"
    world.pass_ms(1000)
    assert responses == [(ErrorCode.none, (owner[0], 1))]
    assert world.markers(0) == [("commit", owner[0], 1, 1)]
    assert len(world.noted("transaction_decided")) == 1
    assert world.transaction(id_).state is TransactionState.COMPLETE_COMMIT
