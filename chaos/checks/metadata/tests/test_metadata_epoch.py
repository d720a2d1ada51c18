"""Metadata epochs in the history of clients, and in the responses and updates of brokers."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from chaos.checks.groups.tests.group_history import A, assigned, judged
from chaos.checks.history import History
from chaos.checks.metadata.metadata_epoch import NonmonotonicMetadataEpoch
from chaos.checks.tests.check_context import check_context
from chaos.checks.tests.client_history import operation
from chaos.checks.tests.stub_node import StubBroker, StubNode
from reference_broker.core.events import Reply, Request
from reference_broker.wire.tags import Tag
from reports.rows import MetadataEpochRow

if TYPE_CHECKING:
    pass

from chaos.checks.groups.tests.group_history import B, commit, member_operation, note
from chaos.checks.metadata.metadata_epoch import FIRST_DRAFT, METADATA, NoFetchBeforeEpoch, OneContentPerEpoch, Rewinds
from reports.rows import EndRow, MembershipRow, PositionRow, ResetRow


@pytest.mark.clause("M-12")
@pytest.mark.parametrize(("left_us", "is_red"), [(9, False), (10, True)])
def test_client_restarts_only_once_it_has_left(left_us: int, is_red: bool) -> None:
    taken = [MetadataEpochRow(A, 1, 0, 5, True, 0), MetadataEpochRow(A, 2, 3, 4, True, 10)]
    history = History(metadata_epochs=taken, memberships=[assigned(A, 1, left_us, "left")])
    assert bool(judged(NonmonotonicMetadataEpoch(check_context()), history)) is is_red


@pytest.mark.clause("M-12")
@pytest.mark.parametrize(
    ("requested_us", "joined_us", "is_red"), [(7, 9, False), (8, 9, True), (8, 14, False), (8, 99, False)]
)
def test_metadata_that_was_requested_before_the_client_came_back_is_of_its_time_before(
    requested_us: int, joined_us: int, is_red: bool
) -> None:
    """The client left at 7. The response with epoch 5 came at 12 or 13, and one with epoch 4 later."""
    history = History(memberships=[assigned(A, 1, 7, "left"), assigned(A, 1, joined_us, "joined")])
    history.add(
        [
            operation(A, 1, "metadata", at_us=requested_us),
            MetadataEpochRow(A, 1, 0, 5, True, requested_us + 5),
            operation(A, 2, "metadata", at_us=20),
            MetadataEpochRow(A, 2, 3, 4, True, 25),
        ]
    )
    assert bool(judged(NonmonotonicMetadataEpoch(check_context()), history)) is is_red


TAG = Tag(METADATA, FIRST_DRAFT, "c")


@dataclass
class StubMetadataCache:
    """The metadata of a broker without topics."""

    metadata_epoch: int = 5
    controller_epoch: int = 1
    topics: Mapping[str, Any] = field(default_factory=dict)

    def live_brokers(self) -> tuple[Any, ...]:
        return ()


@dataclass
class DraftMetadataResponse:
    """The only field of a response that is compared with the node."""

    metadata_epoch: int


@pytest.mark.clause("M-4")
@pytest.mark.parametrize(("sent", "is_wrong"), [(4, True), (5, False), (6, False), (7, False), (8, True), (-1, True)])
@pytest.mark.parametrize("alone", [False, True])
def test_response_in_slices_may_have_any_epoch_since_its_request(sent: int, is_wrong: bool, alone: bool) -> None:
    check = OneContentPerEpoch(check_context(alone=alone))
    cache = StubMetadataCache()
    node = StubNode(StubBroker(metadata=cache)).as_node()
    check.acted(0, node, Request(1, 1, METADATA, FIRST_DRAFT, "c", None, TAG), ())
    cache.metadata_epoch = 7
    response = DraftMetadataResponse(sent)
    check.acted(1, node, None, [Reply(1, 1, METADATA, FIRST_DRAFT, response, TAG)])
    assert bool(check.violations) == is_wrong


def test_live_node_judges_its_own_responses_and_compares_itself_with_no_other() -> None:
    assert OneContentPerEpoch.needs_one_node
    check = OneContentPerEpoch(check_context(alone=True))
    cache = StubMetadataCache()
    node = StubNode(StubBroker(metadata=cache)).as_node()
    for controller_epoch in (1, 2):
        cache.controller_epoch = controller_epoch
        check.inspect(0, controller_epoch, node, None, False)
    assert not check.violations


@pytest.mark.clause("M-5")
def test_client_that_accepts_older_metadata_is_a_violation() -> None:
    rows = [MetadataEpochRow(A, 1, 0, 5, True, 0), MetadataEpochRow(A, 2, 3, 4, True, 10)]
    assert judged(NonmonotonicMetadataEpoch(check_context()), History(metadata_epochs=rows))
    dropped = [rows[0], replace(rows[1], accepted=False)]
    assert not judged(NonmonotonicMetadataEpoch(check_context()), History(metadata_epochs=dropped))
    left = [assigned(A, 1, 5, "left")]
    assert not judged(NonmonotonicMetadataEpoch(check_context()), History(metadata_epochs=rows, memberships=left))


@pytest.mark.clause("M-2")
def test_epoch_that_is_committed_twice_is_a_violation() -> None:
    check = NonmonotonicMetadataEpoch(check_context())
    for node in (0, 1):
        check.trace(note("metadata_epoch", 1, node, epoch=1, offset=10))
    check.trace(note("metadata_epoch", 2, epoch=2, offset=12))
    assert not check.violations
    check.trace(note("metadata_epoch", 3, epoch=1, offset=14))
    assert check.violations
    back = NonmonotonicMetadataEpoch(check_context())
    back.trace(note("update_metadata_applied", 1, epoch=5))
    back.trace(note("update_metadata_applied", 2, epoch=4))
    assert "had metadata epoch 5 and applied 4" in back.violations[0].explanation


@pytest.mark.clause("M-15")
def test_rewind_from_a_position_that_the_partition_has_is_a_violation() -> None:
    reset = ResetRow(A, 3, "hot", 0, 40, 0, "OFFSET_OUT_OF_RANGE", 5, 100)
    ends = [EndRow("hot", 0, 0, 90, 500)]
    assert judged(Rewinds(check_context()), History(resets=[reset], ends=ends))
    for excused in (
        replace(reset, metadata_epoch=-1),
        replace(reset, from_offset=9),
        replace(reset, reason="no_offset"),
    ):
        starts = [PositionRow(A, 2, "hot", 0, 10, 10, 90, 10, None)]
        assert not judged(Rewinds(check_context()), History(resets=[excused], ends=ends, positions=starts))
    at_the_start = History(resets=[replace(reset, from_offset=10)], ends=ends, positions=starts)
    assert judged(Rewinds(check_context()), at_the_start)
    for epoch, is_wrong in ((4, True), (-1, False)):
        began = replace(commit(A, 1, 40, epoch, 50, kind="fetched"), draft=epoch >= 0)
        assert bool(judged(Rewinds(check_context()), History(resets=[reset], ends=ends, commits=[began]))) is is_wrong


@pytest.mark.clause("M-15")
@pytest.mark.parametrize(("offset", "is_wrong"), [(91, False), (90, True)])
def test_position_beyond_the_end_does_not_count(offset: int, is_wrong: bool) -> None:
    reset = ResetRow(A, 3, "hot", 0, offset, 0, "OFFSET_OUT_OF_RANGE", 5, 100)
    history = History(resets=[reset], ends=[EndRow("hot", 0, 0, 90, 500)])
    assert bool(judged(Rewinds(check_context()), history)) is is_wrong


@pytest.mark.clause("M-15")
@pytest.mark.parametrize(
    ("offset", "at_us", "partition", "is_wrong"),
    [
        (39, 80, "hot-0", False),
        (40, 80, "hot-0", True),  # The position was kept.
        (39, 101, "hot-0", True),  # The stale leader, come back.
        (39, 30, "hot-0", True),  # The log has grown again since then.
        (39, 80, "hot-1", True),
    ],
)
def test_position_that_a_replica_cut_off_does_not_count(
    offset: int, at_us: int, partition: str, is_wrong: bool
) -> None:
    check = Rewinds(check_context())
    check.trace(note("truncated", at_us, offset=offset, partition=partition))
    check.trace(note("truncated", at_us, offset=offset))
    history = History(
        operations=[member_operation(B, 1, "fetch", 45)],
        positions=[PositionRow(B, 1, "hot", 0, 30, 40, 90, 0, None)],
        resets=[ResetRow(A, 3, "hot", 0, 40, 0, "OFFSET_OUT_OF_RANGE", 5, 100)],
        ends=[EndRow("hot", 0, 0, 90, 500)],
    )
    assert bool(judged(check, history)) is is_wrong


@pytest.mark.clause("M-15")
def test_position_below_the_log_start_at_the_end_does_not_count() -> None:
    reset = ResetRow(A, 3, "hot", 0, 40, 0, "OFFSET_OUT_OF_RANGE", 5, 100)
    for log_start, is_wrong in ((41, False), (40, True)):
        history = History(resets=[reset], ends=[EndRow("hot", 0, log_start, 90, 500)])
        assert bool(judged(Rewinds(check_context()), history)) is is_wrong


@pytest.mark.clause("M-10", "M-13")
@pytest.mark.parametrize("kind", ["fetched", "loaded"])
def test_fetch_before_committed_epoch_is_a_violation(kind: str) -> None:
    learnt = commit(A, 1, 10, 5, 0, kind=kind)
    news = [MetadataEpochRow(A, 2, 3, 4, True, 20), MetadataEpochRow(A, 3, 0, 5, True, 60)]
    for fetch_at_us, early in ((40, True), (80, False)):
        history = History(
            operations=[member_operation(A, 4, "fetch", fetch_at_us)],
            commits=[learnt],
            metadata_epochs=news,
            positions=[PositionRow(A, 4, "hot", 0, 10, 12, 12, 0, None)],
        )
        assert bool(judged(NoFetchBeforeEpoch(check_context()), history)) is early
        left = MembershipRow(A, "g", "", -1, "left", "", -1, fetch_at_us - 10, -1)
        retried = replace(history, memberships=[left], commits=[replace(learnt, at_us=fetch_at_us - 5)])
        assert judged(NoFetchBeforeEpoch(check_context()), retried)
