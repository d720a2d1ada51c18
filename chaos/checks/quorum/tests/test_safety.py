"""Safety of the metadata quorum: epochs, leaders, logs and high watermarks."""

import pytest

from chaos.checks.metadata.tests.metadata_quorum import SECOND_US, Quorum, batch, settled
from reference_broker.metadata.records import BeginTransactionRecord, EndTransactionRecord


@pytest.fixture
def quorum() -> Quorum:
    return settled()


def test_correct_history_violates_nothing(quorum: Quorum) -> None:
    quorum.now_us += 20 * SECOND_US
    quorum.fault_times.node(0, quorum.now_us)
    quorum.elect(1, 2)
    quorum.append(batch(3, 2, BeginTransactionRecord()), batch(4, 2, EndTransactionRecord()))
    quorum.commit(5)
    for number in range(4):
        quorum.observe(number, thorough=True)
    quorum.end()
    assert quorum.broken() == []


def test_two_leaders_of_one_epoch_violate_one_leader_per_epoch(quorum: Quorum) -> None:
    quorum.nodes[1].is_leader = True
    quorum.observe(1)
    assert quorum.broken() == ["one-leader-per-epoch"]


def test_nodes_that_follow_different_leaders_in_one_epoch_are_a_violation(quorum: Quorum) -> None:
    quorum.nodes[3].leader_id = 1
    quorum.observe(3)
    assert quorum.broken() == ["one-leader-per-epoch"]


def test_epoch_that_goes_back_is_a_violation(quorum: Quorum) -> None:
    quorum.nodes[1].epoch, quorum.nodes[1].leader_id = 0, -1
    quorum.observe(1)
    assert quorum.broken() == ["monotonic-epoch"]


@pytest.mark.parametrize("voted", [True, False])
def test_restart_that_forgets_an_epoch_is_a_violation(quorum: Quorum, voted: bool) -> None:
    node = quorum.nodes[1]
    node.epoch, node.leader_id = 2, -1
    quorum.observe(1)
    if voted:
        quorum.note(1, "voted", epoch=2, candidate=2)
    node.epoch, node.incarnation = 1, 1
    quorum.observe(1)
    assert quorum.broken() == (["monotonic-epoch"] if voted else [])


def test_different_batches_at_one_offset_and_epoch_are_a_violation(quorum: Quorum) -> None:
    quorum.append(batch(3, 1), to=(0,))
    quorum.append(batch(3, 1, time_ms=5), to=(1,))
    assert quorum.broken() == ["log-matching"]


def test_equal_batches_after_different_ones_are_a_violation(quorum: Quorum) -> None:
    quorum.append(batch(3, 1), batch(4, 3), to=(0,))
    quorum.append(batch(3, 2), batch(4, 3), to=(1,))
    assert quorum.broken() == ["log-matching"]


def test_gap_in_a_metadata_log_is_a_violation(quorum: Quorum) -> None:
    quorum.append(batch(5, 1), to=(0,))
    assert quorum.broken() == ["log-matching"]


@pytest.mark.parametrize(("epoch", "broken"), [(1, []), (2, ["log-matching"]), (0, ["log-matching"])])
def test_epoch_that_is_not_the_batch_s_is_a_violation(quorum: Quorum, epoch: int, broken: list[str]) -> None:
    quorum.nodes[1].wrong_epochs[3] = epoch
    quorum.append(batch(3, 1))
    assert quorum.broken() == broken


def test_leader_that_lacks_a_committed_batch_is_a_violation(quorum: Quorum) -> None:
    quorum.append(batch(3, 1), to=(0, 1, 3))
    quorum.commit(4, 0)
    quorum.fault_times.node(0, quorum.now_us)
    quorum.nodes[2].is_leader, quorum.nodes[2].epoch, quorum.nodes[2].leader_id = True, 2, 2
    quorum.observe(2)
    assert quorum.broken() == ["leader-completeness"]


def test_node_with_another_batch_below_its_high_watermark_is_a_violation(quorum: Quorum) -> None:
    quorum.append(batch(3, 1), to=(0, 1))
    quorum.commit(4, 0)
    quorum.append(batch(3, 2), to=(3,))
    quorum.commit(4, 3)
    assert quorum.broken() == ["leader-completeness"]


def test_truncation_below_the_high_watermark_is_a_violation(quorum: Quorum) -> None:
    quorum.note(1, "truncated", offset=2)
    assert quorum.broken() == ["leader-completeness"]


def test_high_watermark_that_goes_back_is_a_violation(quorum: Quorum) -> None:
    quorum.commit(2, 1)
    assert quorum.broken() == ["monotonic-high-watermark"]


def test_new_leader_with_a_smaller_high_watermark_is_a_violation(quorum: Quorum) -> None:
    quorum.fault_times.node(0, quorum.now_us)
    quorum.nodes[1].incarnation, quorum.nodes[1].high_watermark = 1, -1
    quorum.observe(1)
    quorum.elect(1, 2)
    quorum.commit(2, 1)
    assert quorum.broken() == ["monotonic-high-watermark"]


def test_high_watermark_above_what_a_majority_has_durably_is_a_violation(quorum: Quorum) -> None:
    quorum.append(batch(3, 1))
    quorum.nodes[1].synced_offset = quorum.nodes[2].synced_offset = 3
    quorum.observe(1)
    quorum.observe(2)
    quorum.commit(4, 0)
    assert quorum.broken() == ["majority-high-watermark"]


@pytest.mark.parametrize("replaced", [True, False])
def test_only_another_directory_forgets_an_epoch(quorum: Quorum, replaced: bool) -> None:
    node = quorum.nodes[1]
    if replaced:
        quorum.fault_times.directory(1)
    node.epoch, node.leader_id, node.incarnation = 0, -1, 1
    quorum.observe(1)
    assert ("monotonic-epoch" in quorum.broken()) is not replaced


@pytest.mark.parametrize("held", [True, False])
def test_batches_after_a_part_known_only_as_a_snapshot_are_still_compared(quorum: Quorum, held: bool) -> None:
    quorum.append(batch(3, 1), to=(0, 1, 2, 3))
    quorum.commit(4)
    del quorum.view.committed[1]
    node = quorum.nodes[2]
    if not held:
        node.held = node.held[:3]
        quorum.observe(2, thorough=True)
    quorum.fault_times.node(0, quorum.now_us)
    node.is_leader, node.epoch, node.leader_id = True, 2, 2
    quorum.observe(2)
    assert ("leader-completeness" in quorum.broken()) is not held


@pytest.mark.parametrize("before", [True, False])
def test_leader_that_learns_late_of_its_election_may_lack_what_a_later_one_committed(
    quorum: Quorum, before: bool
) -> None:
    """The leader must have what was committed before the later leader began."""
    quorum.fault_times.node(0, quorum.now_us)
    if before:
        quorum.append(batch(3, 1), to=(0, 1, 3))
        quorum.commit(4, 0, 1, 3)
    quorum.nodes[0].is_leader = False
    quorum.nodes[1].is_leader, quorum.nodes[1].epoch, quorum.nodes[1].leader_id = True, 3, 1
    quorum.observe(1)
    if not before:
        quorum.append(batch(3, 3), to=(1, 3))
        quorum.commit(4, 1, 3)
    quorum.nodes[2].is_leader, quorum.nodes[2].epoch, quorum.nodes[2].leader_id = True, 2, 2
    quorum.observe(2)
    assert ("leader-completeness" in quorum.broken()) is before
