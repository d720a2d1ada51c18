"""Values of transactional IDs: steps between them, and values that were lost."""

from collections.abc import Callable
from typing import Any

import pytest

from chaos.checks.history import History
from chaos.checks.log import producer_view
from chaos.checks.replication.eligible_replicas import Eligible
from chaos.checks.replication.replica_view import Replicated
from chaos.checks.tests.kafka_messages import (
    end_txn_request,
    end_txn_response,
    init_producer_id_request,
    init_producer_id_response,
)
from chaos.checks.transactions.tests.transaction_coordinator import (
    DECIDED,
    DONE,
    OWNER,
    STARTED,
    STATE_ID,
    T0,
    T1,
    CheckedTransactionCoordinator,
    markers,
)
from chaos.checks.transactions.transaction_state import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    FENCE_EPOCH,
    FIRST_VALUE,
    LAST_EPOCH,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    REMOVED,
    StateValue,
    read_value,
    wrong_step,
)
from chaos.checks.transactions.transactional_ids import MARKERS_US, EndingsInTime
from reference_broker.metadata.image import PartitionImage
from reference_broker.transactions.transaction_metadata import TransactionMetadata, TransactionState, TxnTransitMetadata
from reference_broker.transactions.transaction_state_manager import (
    transaction_key,
    transaction_value,
)


def at(state: int, epoch: int = 3, *partitions: tuple[str, int], **fields: Any) -> StateValue:
    kept = {"producer_id": 7, "timeout_ms": 1000, "updated_ms": 5, "started_ms": 5, **fields}
    return StateValue(
        offset=0,
        at_us=0,
        transactional_id="x",
        epoch=epoch,
        state=state,
        partitions=frozenset(partitions),
        next_producer_id=kept.pop("next_producer_id", -1),
        client_version=kept.pop("client_version", 0),
        **kept,
    )


V2: dict[str, Any] = {"client_version": 2}
LEGAL = {
    "a new ID": (FIRST_VALUE, at(EMPTY, 0)),
    "a removed ID comes back": (at(REMOVED), at(EMPTY, 0, producer_id=9)),
    "the next epoch": (at(COMPLETE_COMMIT), at(EMPTY, 4, timeout_ms=2000)),
    "the same epoch again": (at(EMPTY), at(EMPTY)),
    "a new producer ID": (at(COMPLETE_ABORT, LAST_EPOCH), at(EMPTY, 0, producer_id=8)),
    "a new producer ID after a fence": (at(COMPLETE_ABORT, FENCE_EPOCH), at(EMPTY, 0, producer_id=8)),
    "a transaction begins": (at(EMPTY), at(ONGOING, 3, T0, started_ms=9)),
    "it grows": (at(ONGOING, 3, T0), at(ONGOING, 3, T0, T1)),
    "commit": (at(ONGOING, 3, T0), at(PREPARE_COMMIT, 3, T0)),
    "abort": (at(ONGOING, 3, T0), at(PREPARE_ABORT, 3, T0)),
    "fence": (at(ONGOING, 3, T0), at(PREPARE_ABORT, 4, T0)),
    "commit of version 2": (at(ONGOING, 3, T0), at(PREPARE_COMMIT, 4, T0, **V2)),
    "abort of nothing": (at(COMPLETE_COMMIT), at(PREPARE_ABORT, 4, started_ms=9, **V2)),
    "the epochs are used up": (
        at(ONGOING, LAST_EPOCH, T0),
        at(PREPARE_COMMIT, FENCE_EPOCH, T0, next_producer_id=8, **V2),
    ),
    "complete": (at(PREPARE_COMMIT, 4, T0), at(COMPLETE_COMMIT, 4)),
    "complete with the next producer ID": (
        at(PREPARE_ABORT, FENCE_EPOCH, T0, next_producer_id=8, **V2),
        at(COMPLETE_ABORT, 0, producer_id=8, **V2),
    ),
    "removed": (at(COMPLETE_COMMIT), at(REMOVED)),
}
WRONG = {
    "an open transaction is forgotten": (at(ONGOING, 3, T0), at(EMPTY, 4), "X-2"),
    "an open transaction is removed": (at(ONGOING, 3, T0), at(REMOVED), "X-2"),
    "a decision is removed": (at(PREPARE_COMMIT, 3, T0), at(REMOVED), "X-2"),
    "a decision is reversed": (at(PREPARE_COMMIT, 3, T0), at(PREPARE_ABORT, 3, T0), "X-2"),
    "a decision is completed otherwise": (at(PREPARE_COMMIT, 3, T0), at(COMPLETE_ABORT, 3), "X-2"),
    "a commit of nothing": (at(EMPTY), at(PREPARE_COMMIT, 4, **V2), "X-2"),
    "an end without a begin": (at(EMPTY), at(COMPLETE_ABORT), "X-2"),
    "a second epoch at once": (at(EMPTY), at(EMPTY, 5), "X-1"),
    "the epoch goes back": (at(EMPTY), at(EMPTY, 2), "X-1"),
    "an epoch beyond the last": (at(EMPTY, LAST_EPOCH), at(EMPTY, FENCE_EPOCH), "X-1"),
    "a new ID begins late": (FIRST_VALUE, at(EMPTY, 1), "X-1"),
    "a producer ID changes early": (at(EMPTY, LAST_EPOCH - 1), at(EMPTY, 0, producer_id=8), "X-1"),
    "a new producer ID begins late": (at(EMPTY, LAST_EPOCH), at(EMPTY, 1, producer_id=8), "X-1"),
    "partitions of another epoch": (at(EMPTY), at(ONGOING, 4, T0), "X-1"),
    "a partition is lost": (at(ONGOING, 3, T0, T1), at(ONGOING, 3, T1), "X-9"),
    "a begin of nothing": (at(EMPTY), at(ONGOING), "X-9"),
    "the start moves": (at(ONGOING, 3, T0), at(ONGOING, 3, T0, started_ms=6), "X-7"),
    "the start moves at the end": (at(ONGOING, 3, T0), at(PREPARE_COMMIT, 3, T0, started_ms=6), "X-7"),
    "the timeout changes": (at(EMPTY), at(ONGOING, 3, T0, timeout_ms=9), "X-1"),
    "a decision lacks a partition": (at(ONGOING, 3, T0, T1), at(PREPARE_COMMIT, 3, T0), "X-3"),
    "a commit raises the epoch": (at(ONGOING, 3, T0), at(PREPARE_COMMIT, 4, T0), "X-1"),
    "version 2 keeps the epoch": (at(ONGOING, 3, T0), at(PREPARE_COMMIT, 3, T0, **V2), "KIP-890"),
    "version 1 aborts nothing": (at(EMPTY), at(PREPARE_ABORT, 4), "KIP-890"),
    "a next producer ID too early": (
        at(ONGOING, 3, T0),
        at(PREPARE_COMMIT, 4, T0, next_producer_id=8, **V2),
        "KIP-890",
    ),
    "no next producer ID": (at(ONGOING, LAST_EPOCH, T0), at(PREPARE_COMMIT, FENCE_EPOCH, T0, **V2), "KIP-890"),
    "the next producer ID is not taken": (
        at(PREPARE_ABORT, FENCE_EPOCH, next_producer_id=8, **V2),
        at(COMPLETE_ABORT, FENCE_EPOCH, **V2),
        "X-1",
    ),
    "a complete transaction keeps a partition": (at(PREPARE_COMMIT, 3, T0), at(COMPLETE_COMMIT, 3, T0), "X-2"),
}


@pytest.mark.parametrize("step", list(LEGAL))
def test_step_that_kafka_takes_is_no_violation(step: str) -> None:
    assert wrong_step(*LEGAL[step]) == ""


@pytest.mark.parametrize("step", list(WRONG))
def test_step_that_kafka_never_takes_is_a_violation_of_its_clause(step: str) -> None:
    before, value, clause = WRONG[step]
    assert clause in wrong_step(before, value)


@pytest.mark.parametrize("level", [0, 1, 2])
def test_value_is_read_as_it_is_written(level: int) -> None:
    written = TxnTransitMetadata(
        "x",
        producer_id=7,
        timeout_ms=1000,
        updated_ms=9,
        state=TransactionState.PREPARE_COMMIT,
        producer_epoch=3,
        partitions=dict.fromkeys([T0, ("u", 5), T1]),
        started_ms=8,
        next_producer_id=11 if level else -1,
        client_version=2 if level else 0,
    )
    value = read_value(4, transaction_key("x"), transaction_value(written, level))
    assert value is not None
    assert value._replace(at_us=0) == StateValue(
        offset=4,
        at_us=0,
        transactional_id="x",
        producer_id=7,
        epoch=3,
        timeout_ms=1000,
        state=PREPARE_COMMIT,
        partitions=frozenset([T0, T1, ("u", 5)]),
        updated_ms=9,
        started_ms=8,
        next_producer_id=written.next_producer_id,
        client_version=written.client_version,
    )


def test_tombstone_and_another_key_are_read() -> None:
    removed = read_value(4, transaction_key("x"), None)
    assert removed is not None
    assert (removed.transactional_id, removed.state) == ("x", REMOVED)
    assert read_value(4, b"\x00\x01\x00\x01x", b"") is None


@pytest.fixture(autouse=True)
def read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_view, "SKIPPED_CHANGES", 1)


LIMIT_US = 12_000_000 + 6_000_000 + 2_000_000 + MARKERS_US


def _end_in_time(world: CheckedTransactionCoordinator) -> None:
    (check,) = (each for each in world.checks if isinstance(each, EndingsInTime))
    check.end(History(end_us=world.us + LIMIT_US + 10_000))


def _sent_markers(world: CheckedTransactionCoordinator) -> None:
    world.acts(None, markers(index=1))


@pytest.mark.clause("E-7")
@pytest.mark.parametrize("lost", [None, 0, 1])
@pytest.mark.parametrize(
    ("steps", "act"),
    [
        ((OWNER, STARTED), lambda world: world.replies(end_txn_request(), end_txn_response())),
        ((OWNER, STARTED), lambda world: world.marker()),
        ((OWNER, STARTED, DECIDED), _sent_markers),
        ((OWNER, STARTED, DECIDED), _end_in_time),
        ((OWNER,), lambda world: world.produce()),
        (
            (OWNER,),
            lambda world: [world.replies(init_producer_id_request(), init_producer_id_response()) for _ in range(2)],
        ),
    ],
)
def test_loss_excuses_the_ids_of_its_partition_only(
    steps: tuple[TxnTransitMetadata, ...], act: Callable[[CheckedTransactionCoordinator], object], lost: int | None
) -> None:
    """Of four partitions the first has x. No other one has anything."""
    world = CheckedTransactionCoordinator()
    for index in range(4):
        state = PartitionImage((1, 2), (1, 2), 1, 4, 0)
        key = bytes([index]) * 16, index
        world.view.partitions[key] = Replicated(f"__transaction_state-{index}", key, state, Eligible.of(state, 1))
    world.write(*steps)
    if lost is not None:
        world.view.excused["__transaction_state", lost] = None
    act(world)
    assert bool(world.looked()) is (lost != 0)


@pytest.mark.clause("E-7")
@pytest.mark.parametrize("is_excused", [True, False])
def test_values_that_vanish_are_compared_with_the_next_unless_no_replica_had_kept_them(is_excused: bool) -> None:
    """A single replica has no other one to keep them."""
    world = CheckedTransactionCoordinator()
    if not is_excused:
        state = PartitionImage((1, 2), (1, 2), 1, 4, 0)
        of_state = Replicated("__transaction_state-0", (STATE_ID, 0), state, Eligible.of(state, 1))
        world.view.partitions[STATE_ID, 0] = of_state
    world.write(OWNER, STARTED, DECIDED)
    with world.touched.noted():
        world.state.truncate_to(1)
    world.held["x"] = TransactionMetadata(OWNER)
    world.looked()
    explanations = [*world.write(STARTED), *world.write(STARTED), *world.write(STARTED)]
    assert bool(explanations) is not is_excused


def _loses_all_but(world: CheckedTransactionCoordinator, *kept: TxnTransitMetadata) -> None:
    """The only replica of the state topic lost its unsynced bytes: all but the first values."""
    with world.touched.noted():
        world.state.truncate_to(len(kept))
    world.held["x"] = TransactionMetadata(kept[-1])
    world.looked()


@pytest.mark.clause("X-3", "E-7")
@pytest.mark.parametrize(("epoch", "is_red"), [(0, False), (1, True)])
def test_lost_decision_excuses_markers_of_the_epochs_before_the_loss_only(epoch: int, *, is_red: bool) -> None:
    world = CheckedTransactionCoordinator()
    world.write(OWNER, STARTED, DECIDED)
    _loses_all_but(world, OWNER)
    assert bool(world.marker(commit=False, epoch=epoch)) is is_red


@pytest.mark.clause("X-3", "E-7")
@pytest.mark.parametrize(
    ("kept", "again", "is_red"), [((OWNER, STARTED, DECIDED), (), False), ((OWNER,), (STARTED, DECIDED), True)]
)
def test_loss_excuses_completions_of_the_decisions_from_before_it_only(
    kept: tuple[TxnTransitMetadata, ...], again: tuple[TxnTransitMetadata, ...], *, is_red: bool
) -> None:
    world = CheckedTransactionCoordinator()
    world.write(OWNER, STARTED, DECIDED)
    world.marker()
    world.write(DONE)
    _loses_all_but(world, *kept)
    assert world.write(*again) == []
    assert bool(world.write(DONE)) is is_red


@pytest.mark.clause("X-3", "E-7")
@pytest.mark.parametrize("taken_over", ["not yet", "after the decision", "before the decision"])
def test_lost_records_excuse_missing_markers_of_the_decisions_from_before_the_loss_only(taken_over: str) -> None:
    world = CheckedTransactionCoordinator()
    world.view.excused[T0] = None
    if taken_over == "before the decision":
        world.view._taken_over_us[T0] = world.us
    world.write(OWNER, STARTED, DECIDED)
    if taken_over == "after the decision":
        world.view._taken_over_us[T0] = world.us
    assert bool(world.write(DONE)) is (taken_over == "before the decision")


@pytest.mark.clause("X-1", "E-7")
def test_lost_log_excuses_no_producer_id_of_two_transactional_ids() -> None:
    world = CheckedTransactionCoordinator()
    world.view.excused["__transaction_state", 0] = None
    world.write(OWNER)
    world.replies(init_producer_id_request(), init_producer_id_response())
    assert len(world.write(OWNER._replace(transactional_id="y"))) == 1
    assert (
        len(world.replies(init_producer_id_request(transactional_id="y"), init_producer_id_response(producer_epoch=1)))
        == 2
    )
