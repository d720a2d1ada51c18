"""TxnOffsetCommit: validation, the records written, and the effect of markers (X-8, KIP-447)."""

import pytest

from reference_broker.groups.committed_offsets import OffsetKey
from reference_broker.groups.records import read_key
from reference_broker.groups.tests.coordinator_world import CoordinatorWorld
from reference_broker.groups.tests.test_commits import led, put
from reference_broker.groups.tests.test_group_coordinator import stable_group
from reference_broker.ports.slicing import COMMITTED_OFFSETS_PER_SLICE, DECIDED_OFFSETS_PER_SLICE
from reference_broker.records.record import read_all
from reference_broker.wire.errors import Error, ErrorCode

OK = [[ErrorCode.none]]
UNSTABLE = (-1, ErrorCode.unstable_offset_commit)
NOTHING = (-1, ErrorCode.none)


# --- validation ------------------------------------------------------------------------------------


@pytest.mark.clause("OffsetMetadataManagerTest.testGenericGroupTransactionalOffsetCommit")
@pytest.mark.clause("OffsetMetadataManagerTest.testGenericGroupTransactionalOffsetCommitWithUnknownMemberId")
@pytest.mark.clause("OffsetMetadataManagerTest.testGenericGroupTransactionalOffsetCommitWithIllegalGenerationId")
@pytest.mark.clause("ClassicGroupTest.testValidateOffsetCommit")
@pytest.mark.parametrize(
    ("generation", "member", "instance", "error"),
    [
        (1, "m-1", None, ErrorCode.none),
        (1, "m-1", "i-1", ErrorCode.none),
        (-1, "", None, ErrorCode.none),
        (0, "m-1", None, ErrorCode.illegal_generation),
        (2, "m-1", None, ErrorCode.illegal_generation),
        (-1, "m-1", None, ErrorCode.illegal_generation),
        (1, "m-2", None, ErrorCode.unknown_member_id),
        (1, "", None, ErrorCode.unknown_member_id),
        (1, "m-1", "i-2", ErrorCode.unknown_member_id),
        (1, "m-2", "i-1", ErrorCode.fenced_instance_id),
        (-1, "m-2", "i-1", ErrorCode.fenced_instance_id),
    ],
)
def test_members_commit_in_their_generation_and_old_clients_in_any(
    generation: int, member: str, instance: str | None, error: Error
) -> None:
    """A client from before KIP-447 sends no member."""
    world, target, group = led()
    put(world, target, stable_group(group))
    end = target.led.log.log_end_offset
    assert world.transact(group, 5, generation=generation, member=member, instance=instance) == [[error]]
    assert target.led.log.log_end_offset == end + (not error)
    world.end(0, commit=True)
    assert world.fetched(group) == ({} if error else {("t", 0): 5})


def test_transactional_commit_before_assignment_is_accepted() -> None:
    world, target, group_id = led()
    group = stable_group(group_id)
    group.begin_rebalance(1)
    group.init_next_generation(1)
    put(world, target, group)
    assert world.transact(group_id, 5, generation=2, member="m-1") == OK
    assert world.commit(group_id, 5, generation=2, member="m-1") == [[ErrorCode.rebalance_in_progress]]


@pytest.mark.clause("OffsetMetadataManagerTest.testGenericGroupTransactionalOffsetCommitWithUnknownGroupId")
def test_commit_with_generation_to_unknown_group_returns_illegal_generation() -> None:
    world, target, group = led()
    assert world.transact(group, 5, generation=3, member="m") == [[ErrorCode.illegal_generation]]
    assert target.groups == {}


def test_empty_group_id_is_rejected_and_simple_group_is_created() -> None:
    world, target, group = led()
    assert world.transact("", 5) == [[ErrorCode.invalid_group_id]]
    assert world.transact(group, 5) == OK
    assert list(target.groups) == [group]


def test_transactional_commit_does_not_extend_session() -> None:
    """As in Kafka, a transactional commit is no sign of the member's consumer."""
    world, target, group = led()
    put(world, target, stable_group(group))
    for _ in range(2):
        world.pass_ms(6000)
        responses = world.transact(group, 5, generation=1, member="m-1")
    assert responses == [[ErrorCode.unknown_member_id]]


# --- the transaction -------------------------------------------------------------------------------


def test_commit_is_written_once_transaction_is_verified() -> None:
    world, target, group = led()
    world.verifying.result = None
    responses = world.transact(group, 5, epoch=3)
    assert (responses, target.led.log.log_end_offset) == ([], 0)
    ((transaction, verified),) = world.verifying.requests
    assert (transaction.transactional_id, transaction.producer_id, transaction.producer_epoch) == ("txn-7", 7, 3)
    verified(ErrorCode.none)
    assert (responses, target.led.log.log_end_offset) == (OK, 1)


@pytest.mark.parametrize(
    ("error", "returned"),
    [
        (ErrorCode.invalid_txn_state, ErrorCode.invalid_txn_state),
        (ErrorCode.transaction_abortable, ErrorCode.transaction_abortable),
        (ErrorCode.invalid_producer_id_mapping, ErrorCode.invalid_producer_id_mapping),
        (ErrorCode.network_exception, ErrorCode.coordinator_load_in_progress),
        (ErrorCode.not_enough_replicas, ErrorCode.coordinator_not_available),
    ],
)
def test_verification_error_is_returned_beside_unknown_partitions(error: Error, returned: Error) -> None:
    """Old clients do not retry after NETWORK_EXCEPTION, so the coordinator returns that it loads."""
    world, target, group = led()
    world.verifying.result = error
    assert world.transact(group, 5, 6, 7, 8) == [[returned] * 3 + [ErrorCode.unknown_topic_or_partition]]
    assert target.led.log.log_end_offset == 0


def test_unknown_partitions_are_rejected_without_verification() -> None:
    world, _, group = led()
    world.verifying.result = ErrorCode.invalid_txn_state
    assert world.transact(group, 5, topic="unknown") == [[ErrorCode.unknown_topic_or_partition]]
    assert world.verifying.requests == []


def test_changes_during_verification_are_checked() -> None:
    world, target, group_id = led()
    world.show(t=3, u=1)
    group = stable_group(group_id)
    put(world, target, group)
    world.verifying.result = None
    unknown = world.transact(group_id, 5, generation=1, member="m-1", topic="u")
    fenced = world.transact(group_id, 5, generation=1, member="m-1")
    world.delete_topic("u")
    world.verifying.requests[0][1](ErrorCode.none)
    group.begin_rebalance(2)
    group.init_next_generation(2)
    world.verifying.requests[1][1](ErrorCode.none)
    assert (unknown, fenced) == ([[ErrorCode.unknown_topic_or_partition]], [[ErrorCode.illegal_generation]])
    lost = world.transact(group_id, 5)
    world.lose(0)
    world.verifying.requests[2][1](ErrorCode.none)
    assert lost == [[ErrorCode.not_coordinator]]


def test_stale_producer_epoch_writes_nothing() -> None:
    world, target, group = led()
    assert world.transact(group, 5, epoch=2) == OK
    assert world.transact(group, 6, epoch=1) == [[ErrorCode.invalid_producer_epoch]]
    assert target.led.log.log_end_offset == 1


@pytest.mark.clause("ProducerStateManagerTest.testSequenceNotValidatedForGroupMetadataTopic")
def test_batch_has_producer_id_and_no_sequences() -> None:
    world, target, group = led()
    world.transact(group, 5, 6, epoch=2)
    assert target.led.log.last_stable_offset == 0
    batches = [header for header, _ in read_all(target.led.log.read(0, 1 << 20))]
    assert {
        (each.producer_id, each.producer_epoch, each.base_sequence, each.is_transactional, each.is_control)
        for each in batches
    } == {(7, 2, -1, True, False)}
    keys = [read_key(record.key or b"") for _, record in read_all(target.led.log.read(0, 1 << 20))]
    assert keys == [OffsetKey(group, "t", 0), OffsetKey(group, "t", 1)]
    assert world.transact(group, 7, epoch=2) == OK, "nor does the next one have any"
    world.end(0, commit=True, epoch=2)
    assert target.led.log.last_stable_offset == 4


def test_invalid_partition_does_not_fail_others() -> None:
    world, _, group = led(offset_metadata_max_bytes="3")
    assert world.transact(group, 5, metadata="1234") == [[ErrorCode.offset_metadata_too_large]]
    assert world.transact(group, 5, 6, 7, 8) == [[ErrorCode.none] * 3 + [ErrorCode.unknown_topic_or_partition]]


def test_many_offsets_are_validated_in_slices_then_written() -> None:
    world, target, group = led()
    many = 2 * COMMITTED_OFFSETS_PER_SLICE + 1
    world.show(t=many)
    responses = world.transact(group, *range(many))
    assert (responses, world.verifying.requests) == ([], [])
    world.pass_ms(0)
    assert (responses, len(world.verifying.requests)) == ([[ErrorCode.none] * many], 1)
    assert target.led.log.log_end_offset == many


# --- visible offsets -------------------------------------------------------------------------------


@pytest.mark.clause("OffsetMetadataManagerTest.testFetchOffsetsWithPendingTransactionalOffsets")
@pytest.mark.parametrize("reloaded", [False, True])
def test_pending_offsets_are_unstable_and_hidden_until_marker(reloaded: bool) -> None:
    world, _, group = led()
    world.commit(group, 100)
    world.transact(group, 110, 210)
    if reloaded:
        world.lead_offsets(0, world.lose(0), epoch=1)
        world.pass_ms(0)
    assert world.stable(group) == [UNSTABLE, UNSTABLE, NOTHING]
    assert world.fetched(group) == {("t", 0): 100}
    world.end(0, commit=True)
    if reloaded:
        world.lead_offsets(0, world.lose(0), epoch=2)
        world.pass_ms(0)
    assert world.stable(group) == [(110, ErrorCode.none), (210, ErrorCode.none), NOTHING]
    assert world.fetched(group) == {("t", 0): 110, ("t", 1): 210}


@pytest.mark.clause("OffsetMetadataManagerTest.testFetchAllOffsetsWithPendingTransactionalOffsets")
def test_fetch_of_all_offsets_includes_unstable_committed_ones() -> None:
    world, _, group = led()
    world.commit(group, 100)
    world.transact(group, 110, 210)
    returned: list[list[tuple[int, bool]]] = []
    world.groups.offset_manager.fetch_offsets(
        group, None, lambda _, found: returned.append([(each.partition, each.is_unstable) for each in found]),
        requires_stable=True,
    )  # fmt: skip
    assert returned == [[(0, True)]]


@pytest.mark.parametrize("reloaded", [False, True])
def test_abort_marker_drops_pending_offsets(reloaded: bool) -> None:
    world, _, group = led()
    world.commit(group, 100)
    world.transact(group, 110, 210)
    world.end(0, commit=False)
    if reloaded:
        world.lead_offsets(0, world.lose(0), epoch=1)
        world.pass_ms(0)
    assert world.stable(group) == [(100, ErrorCode.none), NOTHING, NOTHING]
    world.end(0, commit=True)
    assert world.fetched(group) == {("t", 0): 100}


def test_marker_completes_only_its_producers_offsets() -> None:
    world, _, group = led()
    world.transact(group, 1, producer=7)
    world.transact(group, 2, 2, producer=8)
    world.end(0, commit=True, producer=7)
    assert world.stable(group) == [UNSTABLE, UNSTABLE, NOTHING]
    assert world.fetched(group) == {("t", 0): 1}
    world.end(0, commit=False, producer=8)
    assert world.stable(group) == [(1, ErrorCode.none), NOTHING, NOTHING]


@pytest.mark.parametrize("commit", [True, False])
def test_marker_takes_effect_once_replicated(commit: bool) -> None:
    world = CoordinatorWorld((1, 2, 3))
    assert world.lead_offsets(0) is not None
    group = world.group_in(0)
    world.commit(group, 1)
    world.replicate(0)
    responses = world.transact(group, 2)
    assert (responses, world.stable(group)) == ([], None)
    world.replicate(0)
    assert responses == OK
    assert world.stable(group) == [UNSTABLE, NOTHING, NOTHING]
    world.end(0, commit=commit)
    assert world.fetched(group) == {("t", 0): 1}
    assert world.stable(group) is None
    world.replicate(0)
    seen = 2 if commit else 1
    assert world.fetched(group) == {("t", 0): seen}
    assert world.stable(group) == [(seen, ErrorCode.none), NOTHING, NOTHING]


@pytest.mark.clause("OffsetMetadataManagerTest.testOffsetCommitsNumberMetricWithTransactionalOffsets")
def test_offset_metrics_count_visible_offsets() -> None:
    world, _, group = led()
    gauge = world.groups.metrics.offsets
    world.transact(group, 1, producer=4)
    world.transact(group, 1, producer=5)
    world.transact(group, 1, 2, producer=6)
    assert gauge.value == 0
    for producer in (4, 5, 6):
        world.end(0, commit=True, producer=producer)
    assert gauge.value == 2
    world.lose(0)
    assert gauge.value == 0


def test_long_transaction_completes_in_slices_and_fetches_wait() -> None:
    world, _, group = led()
    many = 2 * DECIDED_OFFSETS_PER_SLICE + 1
    world.show(t=many)
    for _ in (1, 2):  # The second commit replaces the first.
        responses = world.transact(group, *range(many))
        world.pass_ms(0)
        assert responses == [[ErrorCode.none] * many]
    returned: list[int] = []
    world.end(0, commit=True)
    world.groups.offset_manager.fetch_offsets(group, None, lambda _, found: returned.append(len(found)))
    assert (returned, world.groups.metrics.offsets.value) == ([], DECIDED_OFFSETS_PER_SLICE)
    world.pass_ms(0)
    assert (returned, world.groups.metrics.offsets.value) == ([many], many)


def test_fetch_waiting_for_long_transaction_fails_when_partition_is_lost() -> None:
    world, _, group = led()
    many = DECIDED_OFFSETS_PER_SLICE + 1
    world.show(t=many)
    world.transact(group, *range(many))
    world.pass_ms(0)
    world.end(0, commit=True)
    returned: list[Error] = []
    world.groups.offset_manager.fetch_offsets(group, None, lambda error, _: returned.append(error))
    log = world.lose(0)
    assert returned == [ErrorCode.not_coordinator]
    world.lead_offsets(0, log, epoch=1)
    world.pass_ms(0)
    assert len(world.fetched(group)) == many


def test_marker_is_rejected_while_offsets_are_not_loaded() -> None:
    world, _, group = led()
    assert world.groups.refuses_markers(1)
    assert not world.groups.refuses_markers(0)
    world.commit(group, 1)
    world.lead_offsets(0, world.lose(0), epoch=1)
    assert world.groups.refuses_markers(0)
    world.pass_ms(0)
    assert not world.groups.refuses_markers(0)
