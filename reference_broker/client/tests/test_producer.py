"""Sequences, retries and ends of an idempotent producer's batches."""

import pytest

from reference_broker.client.partitions import TopicPartition
from reference_broker.client.producer import Next, ProducerState

FOO0, FOO1 = TopicPartition("foo", 0), TopicPartition("foo", 1)


def ready(max_in_flight: int = 1) -> ProducerState:
    state = ProducerState(max_in_flight)
    state.assign(9, 0)
    return state


def test_sequences_rise_for_each_partition_apart_and_wrap_to_zero() -> None:
    state = ready(5)
    assert [state.add(FOO0, 3).base_sequence for _ in range(3)] == [0, 3, 6]
    assert state.add(FOO1, 1).base_sequence == 0
    assert state.add(FOO1, 2**31 - 1).base_sequence == 1
    assert state.add(FOO1, 1).base_sequence == 0


@pytest.mark.parametrize("limit", [1, 5])
def test_no_more_than_the_limit_are_in_flight_in_a_partition(limit: int) -> None:
    state = ready(limit)
    batches = [state.add(FOO0, 1) for _ in range(limit)]
    assert not state.can_add(FOO0)
    assert state.can_add(FOO1)
    state.responded(batches[0], 0, 0)
    assert state.can_add(FOO0)


def test_more_than_five_in_flight_are_refused() -> None:
    with pytest.raises(AssertionError, match="not 1 to 5"):
        ProducerState(6)


@pytest.mark.parametrize("error", [0, 46])
def test_written_and_written_before_are_both_done(error: int) -> None:
    state = ready()
    batch = state.add(FOO0, 3)
    assert state.responded(batch, error, 40) is Next.DONE
    assert batch.base_offset == 40
    assert state.can_add(FOO0)


@pytest.mark.parametrize(
    ("error", "what"),
    [(6, Next.RETRY_ELSEWHERE), (3, Next.RETRY_ELSEWHERE), (19, Next.RETRY), (7, Next.RETRY), (20, Next.RETRY)],
)
def test_a_retried_batch_keeps_its_sequence(error: int, what: Next) -> None:
    state = ready()
    batch = state.add(FOO0, 3)
    assert state.responded(batch, error, -1) is what
    assert (batch.producer_id, batch.base_sequence) == (9, 0)
    assert not state.can_add(FOO0)


def test_a_refused_batch_that_was_never_lost_failed_for_sure() -> None:
    state = ready()
    assert state.responded(state.add(FOO0, 3), 10, -1) is Next.FAILED
    assert state.needs_producer_id, "its sequence is missing now"


@pytest.mark.parametrize("error", [45, 47, 59, 10])
def test_a_refused_batch_with_a_lost_attempt_has_an_unknown_end(error: int) -> None:
    state = ready()
    batch = state.add(FOO0, 3)
    assert state.lost(batch) is Next.RETRY_ELSEWHERE
    assert state.responded(batch, error, -1) is Next.UNKNOWN
    assert state.needs_producer_id


def test_a_timeout_completed_by_the_broker_counts_as_perhaps_written() -> None:
    state = ready()
    batch = state.add(FOO0, 3)
    state.responded(batch, 7, -1)
    assert state.give_up(batch) is Next.UNKNOWN


@pytest.mark.clause("P-5")
def test_a_batch_refused_by_a_broker_that_forgot_the_producer_goes_under_a_new_id() -> None:
    state = ready()
    state.responded(state.add(FOO0, 3), 0, 0)
    batch = state.add(FOO0, 3)
    assert state.responded(batch, 59, -1) is Next.RETRY
    assert state.needs_producer_id
    state.assign(10, 0)
    state.renew(batch)
    assert (batch.producer_id, batch.base_sequence) == (10, 0)
    assert state.add(FOO1, 1).base_sequence == 0


def test_a_batch_out_of_order_behind_one_being_retried_waits_for_it() -> None:
    state = ready(5)
    first, second = state.add(FOO0, 3), state.add(FOO0, 3)
    assert state.responded(first, 6, -1) is Next.RETRY_ELSEWHERE
    assert state.responded(second, 45, -1) is Next.RETRY


def test_giving_up_before_any_attempt_is_a_failure_and_keeps_nothing_open() -> None:
    state = ready()
    batch = state.add(FOO0, 3)
    assert state.give_up(batch) is Next.FAILED
    assert state.needs_producer_id, "its sequence is missing now"


def test_without_idempotence_batches_carry_nothing_and_lost_ones_are_not_sent_again() -> None:
    state = ProducerState(idempotent=False)
    assert not state.needs_producer_id
    batch = state.add(FOO0, 3)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (-1, -1, -1)
    assert state.lost(batch) is Next.UNKNOWN
    assert state.responded(state.add(FOO0, 3), 20, -1) is Next.UNKNOWN
