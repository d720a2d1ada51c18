"""Sequences, retries and outcomes of an idempotent producer's batches."""

import pytest

from reference_broker.client.partitions import TopicPartition
from reference_broker.client.producer import Next, ProducerState
from reference_broker.wire.errors import ErrorCode

FOO0, FOO1 = TopicPartition("foo", 0), TopicPartition("foo", 1)


def ready(max_in_flight: int = 1) -> ProducerState:
    state = ProducerState(max_in_flight)
    state.assign(9, 0)
    return state


def test_sequences_increase_per_partition_and_wrap_to_zero() -> None:
    state = ready(5)
    assert [state.add(FOO0, 3).base_sequence for _ in range(3)] == [0, 3, 6]
    assert state.add(FOO1, 1).base_sequence == 0
    assert state.add(FOO1, 2**31 - 1).base_sequence == 1
    assert state.add(FOO1, 1).base_sequence == 0


@pytest.mark.parametrize("limit", [1, 5])
def test_batches_in_flight_are_limited_per_partition(limit: int) -> None:
    state = ready(limit)
    batches = [state.add(FOO0, 1) for _ in range(limit)]
    assert not state.can_add(FOO0)
    assert state.can_add(FOO1)
    state.responded(batches[0], 0, 0)
    assert state.can_add(FOO0)


def test_more_than_five_in_flight_is_rejected() -> None:
    with pytest.raises(AssertionError, match="not 1 to 5"):
        ProducerState(6)


@pytest.mark.parametrize("error", [ErrorCode.none, ErrorCode.duplicate_sequence_number])
def test_success_and_duplicate_sequence_complete_batch(error: int) -> None:
    state = ready()
    batch = state.add(FOO0, 3)
    assert state.responded(batch, error, 40) is Next.DONE
    assert batch.base_offset == 40
    assert state.can_add(FOO0)


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (ErrorCode.not_leader_or_follower, Next.RETRY_ELSEWHERE),
        (ErrorCode.unknown_topic_or_partition, Next.RETRY_ELSEWHERE),
        (ErrorCode.not_enough_replicas, Next.RETRY),
        (ErrorCode.request_timed_out, Next.RETRY),
        (ErrorCode.not_enough_replicas_after_append, Next.RETRY),
    ],
)
def test_retried_batch_keeps_its_sequence(error: int, what: Next) -> None:
    state = ready()
    batch = state.add(FOO0, 3)
    assert state.responded(batch, error, -1) is what
    assert (batch.producer_id, batch.base_sequence) == (9, 0)
    assert not state.can_add(FOO0)


def test_rejected_batch_without_lost_attempt_failed() -> None:
    state = ready()
    assert state.responded(state.add(FOO0, 3), 10, -1) is Next.FAILED
    assert state.needs_producer_id, "its sequence is missing now"


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.out_of_order_sequence_number,
        ErrorCode.invalid_producer_epoch,
        ErrorCode.unknown_producer_id,
        ErrorCode.message_too_large,
    ],
)
def test_rejected_batch_with_lost_attempt_has_unknown_outcome(error: int) -> None:
    state = ready()
    batch = state.add(FOO0, 3)
    assert state.lost(batch) is Next.RETRY_ELSEWHERE
    assert state.responded(batch, error, -1) is Next.UNKNOWN
    assert state.needs_producer_id


def test_request_timed_out_counts_as_possibly_written() -> None:
    state = ready()
    batch = state.add(FOO0, 3)
    state.responded(batch, 7, -1)
    assert state.give_up(batch) is Next.UNKNOWN


@pytest.mark.clause("P-5")
def test_unknown_producer_id_resends_batch_with_new_producer_id() -> None:
    state = ready()
    state.responded(state.add(FOO0, 3), 0, 0)
    batch = state.add(FOO0, 3)
    assert state.responded(batch, 59, -1) is Next.RETRY
    assert state.needs_producer_id
    state.assign(10, 0)
    state.renew(batch)
    assert (batch.producer_id, batch.base_sequence) == (10, 0)
    assert state.add(FOO1, 1).base_sequence == 0


def test_out_of_order_batch_waits_for_retry_of_earlier_one() -> None:
    state = ready(5)
    first, second = state.add(FOO0, 3), state.add(FOO0, 3)
    assert state.responded(first, 6, -1) is Next.RETRY_ELSEWHERE
    assert state.responded(second, 45, -1) is Next.RETRY


def test_expiry_before_any_attempt_is_failure() -> None:
    state = ready()
    batch = state.add(FOO0, 3)
    assert state.give_up(batch) is Next.FAILED
    assert state.needs_producer_id, "its sequence is missing now"


def test_nonidempotent_batches_have_no_sequence_and_are_not_resent() -> None:
    state = ProducerState(idempotent=False)
    assert not state.needs_producer_id
    batch = state.add(FOO0, 3)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (-1, -1, -1)
    assert state.lost(batch) is Next.UNKNOWN
    assert state.responded(state.add(FOO0, 3), 20, -1) is Next.UNKNOWN
