"""The transactional producer with a naive broker, in both versions of transactions."""

import pytest

from reference_broker.client.tests.transaction_world import (
    BAR0,
    FOO0,
    FOO1,
    LOST,
    ME,
    NODE,
    NOT_ARRIVED,
    OFFSETS,
    ProducerWorld,
    record,
)
from reference_broker.client.transaction_manager import IllegalStepError, Outcome, State
from reference_broker.client.transaction_requests import Remedy, TransactionError
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode

OLD, NEW = 0, 2
BOTH = pytest.mark.parametrize("level", [OLD, NEW])


@pytest.fixture(params=[OLD, NEW])
def world(request: pytest.FixtureRequest) -> ProducerWorld:
    return ProducerWorld.of(request.param).ready()


def begin(world: ProducerWorld, *values: str) -> None:
    """Begin a transaction and send to foo-0."""
    world.producer.begin()
    for value in values:
        world.producer.send(world.now_us, FOO0, [record(value)])


def commit(world: ProducerWorld) -> None:
    world.producer.commit()
    world.run()


def abort(world: ProducerWorld) -> None:
    world.producer.abort()
    world.run()


def test_version_1_adds_partitions_and_keeps_epoch() -> None:
    world = ProducerWorld.of(OLD).ready()
    assert world.names() == ["find_coordinator", "init_producer_id"]
    for value in ("a", "b"):
        begin(world, value)
        world.producer.send_offsets(OFFSETS, ME)
        commit(world)
    announced = ["add_partitions_to_txn", "add_offsets_to_txn", "txn_offset_commit", "end_txn"]
    assert [name for name in world.names() if name not in ("produce", "find_coordinator")] == 2 * announced
    assert world.broker.epoch == 0
    assert world.broker.committed == [(FOO0, "a"), (FOO0, "b")]
    assert world.broker.offsets == {FOO0: 7}


def test_version_2_adds_no_partitions_and_takes_epoch_from_end_txn() -> None:
    world = ProducerWorld.of(NEW).ready()
    for value in ("a", "b"):
        begin(world, value)
        world.producer.send_offsets(OFFSETS, ME)
        commit(world)
    sent = dict(world.broker.requests)
    assert (sent["produce"], sent["end_txn"], sent["txn_offset_commit"]) == (12, 5, 5)
    assert not {"add_partitions_to_txn", "add_offsets_to_txn"} & sent.keys()
    assert world.broker.epoch == world.producer.transactions.identity.epoch == 2
    assert world.broker.committed == [(FOO0, "a"), (FOO0, "b")]


def test_request_versions_match_transaction_version(world: ProducerWorld) -> None:
    begin(world, "a")
    commit(world)
    sent = dict(world.broker.requests)
    is_new = world.broker.level >= NEW
    assert (sent["produce"] >= 12, sent["end_txn"] >= 5) == (is_new, is_new)


@BOTH
def test_transaction_starts_as_soon_as_producer_is_ready(level: int) -> None:
    world = ProducerWorld.of(level)
    world.producer.init()
    for value in ("a", "b"):
        while world.producer.state is not State.READY:
            if not world.turn():
                world.now_us += 100
        begin(world, value)
        world.run()
        world.producer.commit()
    world.run()
    assert world.broker.committed == [(FOO0, "a"), (FOO0, "b")]


def test_abort_discards_records(world: ProducerWorld) -> None:
    begin(world, "a")
    world.producer.send_offsets(OFFSETS, ME)
    world.run()
    abort(world)
    assert (world.producer.state, world.producer.outcome) == (State.READY, Outcome.OK)
    begin(world, "b")
    commit(world)
    assert (world.broker.committed, world.broker.offsets) == ([(FOO0, "b")], {})


def test_empty_transaction_sends_no_end_txn(world: ProducerWorld) -> None:
    world.names()
    begin(world)
    commit(world)
    assert (world.producer.outcome, world.names()) == (Outcome.OK, [])


def test_end_txn_follows_all_batches_and_offsets(world: ProducerWorld) -> None:
    begin(world)
    sent = [world.producer.send(world.now_us, each, [record("x"), record("y")]) for each in (FOO0, FOO1, BAR0, FOO0)]
    world.producer.send_offsets(OFFSETS, ME)
    commit(world)
    assert all(each.is_written for each in sent)
    assert world.names()[-1] == "end_txn"
    assert len(world.broker.committed) == 8


@pytest.mark.parametrize("key", [ApiKey.PRODUCE, ApiKey.END_TXN, ApiKey.INIT_PRODUCER_ID, ApiKey.TXN_OFFSET_COMMIT])
@pytest.mark.parametrize("how", [LOST, NOT_ARRIVED])
@BOTH
def test_request_without_response_is_resent_and_applied_once(level: int, key: ApiKey, how: str) -> None:
    world = ProducerWorld.of(level)
    world.broker.will(key, how, how)
    world.ready()
    begin(world, "a")
    world.producer.send_offsets(OFFSETS, ME)
    commit(world)
    assert world.producer.outcome is Outcome.OK
    assert world.broker.committed == [(FOO0, "a")]
    assert world.names().count(key.name.lower()) == 3


@pytest.mark.parametrize("key", [ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.FIND_COORDINATOR])
@pytest.mark.parametrize("how", [LOST, NOT_ARRIVED, ErrorCode.coordinator_not_available])
def test_version_1_requests_are_retried(key: ApiKey, how: ErrorCode | str) -> None:
    world = ProducerWorld.of(OLD)
    world.broker.will(key, how, how)
    world.ready()
    begin(world, "a")
    world.producer.send_offsets(OFFSETS, ME)
    commit(world)
    assert world.broker.committed == [(FOO0, "a")]


@pytest.mark.parametrize(
    ("key", "error"),
    [
        (ApiKey.INIT_PRODUCER_ID, ErrorCode.concurrent_transactions),
        (ApiKey.INIT_PRODUCER_ID, ErrorCode.not_coordinator),
        (ApiKey.PRODUCE, ErrorCode.concurrent_transactions),
        (ApiKey.PRODUCE, ErrorCode.not_leader_or_follower),
        (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.request_timed_out),
        (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.coordinator_load_in_progress),
        (ApiKey.END_TXN, ErrorCode.concurrent_transactions),
        (ApiKey.END_TXN, ErrorCode.not_coordinator),
    ],
)
@BOTH
def test_retriable_errors_are_retried_after_the_backoff(level: int, key: ApiKey, error: ErrorCode) -> None:
    world = ProducerWorld.of(level)
    world.broker.will(key, error)
    world.ready()
    begin(world, "a")
    world.producer.send_offsets(OFFSETS, ME)
    commit(world)
    assert world.producer.outcome is Outcome.OK
    assert world.broker.committed == [(FOO0, "a")]
    assert world.now_us >= 100


@pytest.mark.parametrize(
    ("key", "error"),
    [
        (ApiKey.PRODUCE, ErrorCode.invalid_producer_epoch),
        (ApiKey.PRODUCE, ErrorCode.invalid_txn_state),
        (ApiKey.PRODUCE, ErrorCode.message_too_large),
        (ApiKey.PRODUCE, ErrorCode.transaction_abortable),
        (ApiKey.PRODUCE, ErrorCode.unknown_producer_id),
        (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.illegal_generation),
        (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.fenced_instance_id),
        (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.unknown_member_id),
        (ApiKey.END_TXN, ErrorCode.transaction_abortable),
    ],
)
def test_abortable_error_requires_abort(world: ProducerWorld, key: ApiKey, error: ErrorCode) -> None:
    world.broker.will(key, error)
    begin(world, "a", "b")
    world.producer.send_offsets(OFFSETS, ME)
    commit(world)
    assert (world.producer.state, world.producer.outcome) == (State.ABORTABLE_ERROR, Outcome.FAILED)
    with pytest.raises(TransactionError) as caught:
        world.producer.begin()
    assert (caught.value.is_abortable, caught.value.error) == (True, error)
    abort(world)
    assert world.producer.state is State.READY
    begin(world, "c")
    commit(world)
    assert (world.broker.committed, world.broker.offsets) == ([(FOO0, "c")], {})


def test_expired_batch_bumps_epoch_in_version_1() -> None:
    world = ProducerWorld.of(OLD).ready()
    world.broker.will(ApiKey.PRODUCE, ErrorCode.message_too_large)
    begin(world, "a")
    world.run()
    world.names()
    abort(world)
    assert world.names() == ["end_txn", "init_producer_id"]
    assert world.producer.transactions.identity.epoch == 1


@pytest.mark.parametrize(
    ("key", "error", "remedy"),
    [
        (ApiKey.PRODUCE, ErrorCode.producer_fenced, Remedy.RESTART),
        (ApiKey.PRODUCE, ErrorCode.invalid_producer_id_mapping, Remedy.RESTART),
        (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.invalid_producer_epoch, Remedy.RESTART),
        (ApiKey.END_TXN, ErrorCode.producer_fenced, Remedy.RESTART),
        (ApiKey.END_TXN, ErrorCode.invalid_txn_state, Remedy.GIVE_UP),
        (ApiKey.END_TXN, ErrorCode.transactional_id_authorization_failed, Remedy.CONFIGURE),
    ],
)
def test_fatal_error_ends_producer(world: ProducerWorld, key: ApiKey, error: ErrorCode, remedy: Remedy) -> None:
    world.broker.will(key, error)
    begin(world, "a")
    world.producer.send_offsets(OFFSETS, ME)
    commit(world)
    assert (world.producer.state, world.producer.outcome) == (State.FATAL_ERROR, Outcome.FAILED)
    for act in (world.producer.begin, world.producer.abort, world.producer.init):
        with pytest.raises(TransactionError) as caught:
            act()
        assert caught.value.remedy is remedy
    world.names()
    world.run()
    assert world.names() == []


def test_fenced_producer_commits_no_records(world: ProducerWorld) -> None:
    begin(world, "zombie")
    world.run()
    world.broker.fence()
    world.producer.send(world.now_us, FOO0, [record("late")])
    commit(world)
    if world.producer.state is State.ABORTABLE_ERROR:  # A partition leader does not return PRODUCER_FENCED (KIP-588).
        abort(world)
    assert world.producer.state is State.FATAL_ERROR
    assert world.producer.error is not None
    assert world.producer.error.error is ErrorCode.producer_fenced
    assert world.broker.committed == []


def test_fenced_after_lost_end_txn_has_unknown_outcome(world: ProducerWorld) -> None:
    """The lost EndTxn has committed before the other producer started."""
    begin(world, "a")
    world.run()
    world.broker.will(ApiKey.END_TXN, LOST)
    world.producer.commit()
    while not world.broker.committed:
        world.turn()
    world.broker.fence()
    world.broker.ended_as = None
    world.run()
    assert (world.producer.state, world.producer.outcome) == (State.FATAL_ERROR, Outcome.UNKNOWN)


def test_timeout_before_end_txn_is_failure_and_after_it_unknown(world: ProducerWorld) -> None:
    begin(world, "a")
    world.run()
    world.producer.commit()
    before = world.producer.transactions.outcome_if_given_up
    world.producer.next_requests(world.now_us)
    after = world.producer.transactions.outcome_if_given_up
    assert (before, after) == (Outcome.FAILED, Outcome.UNKNOWN)


def test_late_batch_fails_its_transaction(world: ProducerWorld) -> None:
    world.broker.will(ApiKey.PRODUCE, *[NOT_ARRIVED] * 1_000)
    begin(world, "a")
    for _ in range(20):
        world.turn()
    world.now_us = 200_000_000
    world.run()
    assert world.producer.state is State.ABORTABLE_ERROR
    world.broker.script.clear()
    abort(world)
    begin(world, "b")
    commit(world)
    assert world.broker.committed == [(FOO0, "b")]


def test_open_transaction_keeps_version_and_upgrade_bumps_epoch() -> None:
    world = ProducerWorld.of(OLD).ready()
    begin(world, "a")
    world.run()
    world.broker.level, world.broker.features_epoch = 2, 2
    world.producer.learn_versions(NODE, world.broker.versions())
    world.producer.send(world.now_us, FOO1, [record("b")])
    commit(world)
    sent = world.names()
    assert sent.count("add_partitions_to_txn") == 2
    assert sent[-2:] == ["end_txn", "init_producer_id"]
    assert world.producer.transactions.identity.epoch == 1
    begin(world, "c")
    commit(world)
    assert "add_partitions_to_txn" not in world.names()
    assert world.broker.committed == [(FOO0, "a"), (FOO1, "b"), (FOO0, "c")]


def test_older_finalized_features_are_ignored() -> None:
    world = ProducerWorld.of(NEW)
    world.broker.level, world.broker.features_epoch = 0, 0
    world.producer.learn_versions(NODE, world.broker.versions())
    assert world.producer.transactions.announced.adds_by_itself


def test_unauthorized_init_can_be_retried_after_abort() -> None:
    world = ProducerWorld.of(NEW)
    world.broker.will(ApiKey.INIT_PRODUCER_ID, ErrorCode.transactional_id_authorization_failed)
    world.ready()
    before = world.producer.state
    abort(world)
    assert (before, world.producer.state) == (State.ABORTABLE_ERROR, State.READY)


@pytest.mark.parametrize("act", ["begin", "commit", "abort"])
def test_invalid_step_changes_no_state(act: str) -> None:
    world = ProducerWorld.of(NEW)
    with pytest.raises(IllegalStepError):
        getattr(world.producer, act)()
    assert world.ready().producer.state is State.READY
