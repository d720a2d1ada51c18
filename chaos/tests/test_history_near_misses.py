"""What excuses a violation of guarantees to clients, and what just fails to excuse it."""

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from kio.schema.types import GroupId

from chaos.checks.check import MAX_VIOLATIONS
from chaos.checks.committed_offsets import LOADING_US, CommitsFenced, NoCommittedLost
from chaos.checks.eligible import Eligible
from chaos.checks.groups import OneGroupLeader
from chaos.checks.history import History
from chaos.checks.metadata_epoch import NonmonotonicMetadataEpoch
from chaos.checks.producer_view import LogProducers
from chaos.checks.reads import FetchGap, PollSkip, UnrequestedPartition
from chaos.checks.replica_view import Replicated, offsets_partition
from chaos.checks.transaction_state import StatePartition
from chaos.checks.transactions_in_partitions import CLEANUP_US, HangingTransaction
from chaos.checks.writes import Duplicate, InconsistentOffsets, LostWrite, Unseen
from chaos.tests.check_context import check_context
from chaos.tests.kafka_messages import offset_commit_request, offset_commit_response
from chaos.tests.stub_node import (
    StubBroker,
    StubCoordinator,
    StubImages,
    StubLog,
    StubNode,
    StubOffsetsPartition,
    image_of,
    topic_image,
)
from chaos.tests.test_checks import (
    ASSIGNMENT,
    BASE,
    END,
    OPERATIONS,
    POSITIONS,
    READS,
    SENDS,
    broken,
    operation,
    position,
    read,
    send,
)
from chaos.tests.test_group_checks import A, B, assigned, commit, judged, note
from reference_broker.core.events import Reply, Request
from reference_broker.groups.committed_offsets import CommitOffset, OffsetKey
from reference_broker.groups.group import Group, Member
from reference_broker.metadata.image import PartitionImage
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.tags import Tag
from reports.rows import EndRow, HistoryRow, MetadataEpochRow, ResetRow, SpanRow, TraceRow, TransactionRow

if TYPE_CHECKING:
    from reference_broker.core.node import Node

REST: list[HistoryRow] = [*OPERATIONS, ASSIGNMENT, END]


@pytest.mark.thorough
@pytest.mark.parametrize("promised", [True, False])
def test_damaged_value_is_never_excused(promised: bool) -> None:
    damaged = replace(read(2, 0, 1), valid=False)
    assert broken([*BASE, *SENDS, *POSITIONS, *READS, damaged], promised) == ["corrupt-value"]


@pytest.mark.parametrize("producer", [-1, 7, 8])
def test_only_one_producer_id_writes_a_value_once(producer: int) -> None:
    rows = [*BASE, send(0, 0, 0), *POSITIONS, read(0, 0), replace(read(1, 5, shift=-5), producer_id=producer)]
    if producer == -1:
        rows = [replace(row, producer_id=-1) if isinstance(row, SpanRow) else row for row in rows]
    assert broken(rows) == (["duplicate"] if producer == 7 else [])


SECOND_US = 1_000_000
DAY_US = 86_400 * SECOND_US


def is_duplicate(
    lasted_us: int,
    expiration_us: int,
    shown_us: int = 100 * SECOND_US,
    kind: str = "ok",
    f: str = "produce",
    steps_us: int = 0,
    tick_us: int = 1000,
) -> bool:
    """Return whether it violates the guarantee that a value is at offsets 0 and 20. Its send lasted so long from its
    begin at 0, and the value was read at 20 first at ``shown_us``."""
    history = History(clock_steps_us=steps_us, clock_tick_us=tick_us, producer_expiration_us=expiration_us)
    history.add(
        [
            replace(operation("p", 0, f, kind), complete_us=lasted_us),
            replace(operation("f", 0, "fetch"), complete_us=SECOND_US),
            replace(operation("f", 1, "fetch"), complete_us=shown_us),
            send(0, 0 if kind == "ok" else -1, 0),
            read(0, 0),
            read(1, 20, shift=-20),
        ]
    )
    return bool(judged(Duplicate(check_context()), history))


@pytest.mark.clause("P-6", "P-7")
@pytest.mark.parametrize(
    ("lasted_us", "expiration_us", "is_red"),
    [
        (4 * SECOND_US, 4 * SECOND_US, False),
        (4 * SECOND_US - 1000, 4 * SECOND_US, False),  # the timestamp is of whole milliseconds
        (4 * SECOND_US - 1001, 4 * SECOND_US, True),
        (4 * SECOND_US, 4 * SECOND_US + 1001, True),
        (99 * SECOND_US, DAY_US, True),
    ],
)
def test_id_may_expire_only_during_a_send_that_lasts_as_long(lasted_us: int, expiration_us: int, is_red: bool) -> None:
    assert is_duplicate(lasted_us, expiration_us) is is_red


@pytest.mark.parametrize(
    ("expiration_us", "is_red"), [(6 * SECOND_US, False), (6 * SECOND_US + 1, True), (8 * SECOND_US, True)]
)
def test_steps_of_clocks_and_their_tick_let_an_id_expire_sooner(expiration_us: int, is_red: bool) -> None:
    assert is_duplicate(3 * SECOND_US, expiration_us, steps_us=2 * SECOND_US, tick_us=SECOND_US) is is_red


@pytest.mark.parametrize(("kind", "lasted_us"), [("ok", 50 * SECOND_US), ("info", 1)])
@pytest.mark.parametrize(("shown_us", "is_red"), [(4 * SECOND_US - 1000, False), (4 * SECOND_US - 1001, True)])
def test_id_expires_before_its_second_record_is_shown(kind: str, lasted_us: int, shown_us: int, is_red: bool) -> None:
    """Whether the end of the send is known or not, a batch may be written after its client has given up."""
    assert is_duplicate(lasted_us, 4 * SECOND_US, shown_us, kind) is is_red


def test_id_does_not_expire_in_a_transaction() -> None:
    assert is_duplicate(9 * SECOND_US, 4 * SECOND_US, f="transaction")
    assert not is_duplicate(9 * SECOND_US, 4 * SECOND_US)


def test_value_that_is_written_three_times_is_judged_by_each_two_writes_in_a_row() -> None:
    """The last write may be one after the ID has expired, and the second is not."""
    history = History(producer_expiration_us=4 * SECOND_US)
    history.add([replace(operation("p", 0, "produce"), complete_us=9 * SECOND_US), send(0, 0, 0)])
    for index, (offset, shown_s) in enumerate(((40, 9), (0, 1), (20, 2))):
        history.add([replace(operation("f", index, "fetch"), complete_us=shown_s * SECOND_US)])
        history.add([read(index, offset, shift=-offset)])
    violations = judged(Duplicate(check_context()), history)
    assert {each.partition(":")[0] for each in violations} == {f"hot-0 offset {offset}" for offset in range(20, 25)}


@pytest.mark.clause("E-7")
@pytest.mark.parametrize(("unguaranteed", "is_red"), [("p", False), ("q", True)])
def test_only_producers_with_one_acknowledgement_may_lose_writes(unguaranteed: str, is_red: bool) -> None:
    rows = [*BASE, *SENDS, *POSITIONS, read(0, 5)]
    assert bool(broken_with(unguaranteed, rows)) is is_red
    backwards = [*BASE, send(0, 5, 5), send(1, 0, 0), *POSITIONS, *READS]
    assert bool(broken_with(unguaranteed, backwards)) is is_red


def broken_with(unguaranteed: str, rows: list[HistoryRow]) -> list[str]:
    return broken(rows, unguaranteed=(unguaranteed,))


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "is_red"), [("ok", True), ("info", False), ("fail", False)])
def test_only_acknowledged_records_must_be_read(kind: str, is_red: bool) -> None:
    rows = [operation("p", 0, "produce", kind), *OPERATIONS[1:], ASSIGNMENT, END, *SENDS, *POSITIONS, read(1, 5)]
    assert bool(broken(rows)) is is_red


@pytest.mark.parametrize(("count", "is_red"), [(0, False), (3, True), (5, False)])
def test_batch_of_unknown_end_is_written_whole_or_not_at_all(count: int, is_red: bool) -> None:
    some = [read(0, 0, count)] if count else []
    rows = [operation("p", 0, "produce", "info"), *BASE[1:], send(0, -1, 0), SENDS[1], *POSITIONS, *some, read(1, 5)]
    assert broken(rows) == (["lost-write", "unseen"] if is_red else [])


@pytest.mark.parametrize(("acked_at", "is_red"), [(5, False), (6, True)])
def test_value_acknowledged_at_another_offset_is_a_duplicate(acked_at: int, is_red: bool) -> None:
    rows = [*BASE, SENDS[0], send(1, acked_at, 5), *POSITIONS, *READS]
    assert ("duplicate" in broken(rows)) is is_red


def test_check_keeps_its_earliest_violations() -> None:
    check = NonmonotonicMetadataEpoch(check_context())
    for at_us in (*range(MAX_VIOLATIONS, 0, -1), MAX_VIOLATIONS + 1):
        check.violated(at_us, "")
    assert [each.at_us for each in check.violations] == [*range(1, MAX_VIOLATIONS + 1)]


def test_check_without_evidence_is_reported() -> None:
    for rows, looked_at in (([*BASE, *SENDS, *POSITIONS, *READS], True), ([], False)):
        history = History()
        history.add(rows)
        for kind in (LostWrite, Unseen, PollSkip, UnrequestedPartition, FetchGap, InconsistentOffsets):
            check = kind(check_context())
            check.end(history)
            assert bool(check.evidence) is looked_at, kind


@pytest.mark.thorough
@pytest.mark.clause("F-12")
@pytest.mark.parametrize(("until_us", "from_us", "is_red"), [(31, 36, False), (30, 36, True), (29, 35, False)])
def test_response_about_what_was_forgotten_or_not_yet_requested(until_us: int, from_us: int, is_red: bool) -> None:
    """The second fetch is sent at 30 and gets its response at 35."""
    given = [replace(ASSIGNMENT, until_us=until_us), replace(ASSIGNMENT, from_us=from_us, from_offset=5)]
    found = broken([*OPERATIONS, END, *given, *SENDS, *POSITIONS, *READS])
    assert ("unrequested-partition" in found) is is_red


@pytest.mark.clause("F-20")
@pytest.mark.parametrize(("following", "is_red"), [(9, True), (10, False), (11, True)])
def test_fetcher_ends_exactly_at_the_high_watermark(following: int, is_red: bool) -> None:
    rows = [*REST, *SENDS, position(0, 0, 5), position(1, 5, following), *READS]
    assert broken(rows) == (["fetch-gap"] if is_red else [])


@pytest.mark.clause("E-7")
@pytest.mark.parametrize(
    ("lost", "last_stable", "open_from", "is_red"),
    [
        (("__transaction_state", 0), 9, {7: 9}, False),
        (("__transaction_state", 0), 8, {7: 8}, True),
        (("__transaction_state", 3), 9, {7: 9}, True),
        (("hot", 0), 9, {7: 9}, True),
        (("__transaction_state", 0), 9, {8: 9}, True),
        (("__transaction_state", 0), 9, {}, True),
    ],
)
def test_transaction_that_its_coordinator_lost_holds_back_readers(
    lost: tuple[str, int], last_stable: int, open_from: dict[int, int], is_red: bool
) -> None:
    """Partition 0 of four has transactional ID x, of producer 7. Producer 8 is unknown."""
    context = check_context()
    context.replicas.excused[lost] = None
    for number in range(4):
        state = PartitionImage((0, 1, 2), (0, 1, 2), 0, 0, 0)
        of_state = Replicated(f"__transaction_state-{number}", (b"s", number), state, Eligible.of(state, 2))
        context.replicas.partitions[b"s", number] = of_state
    context.transactions.owners[7] = StatePartition(0, (bytes(16), 0)), "x"
    log = StubLog(high_watermark=10).as_log()
    context.producers.logs[1, "hot-0"] = LogProducers(log, b"", 0, open=open_from)
    context.producers.logs[1, "hot-1"] = LogProducers(log, b"", 1, open={7: 9})
    check, history = FetchGap(context), History()
    rest = [replace(row, last_stable_offset=last_stable) if isinstance(row, EndRow) else row for row in REST]
    history.add([*rest, *SENDS, position(0, 0, 5), position(1, 5, 9), *READS])
    check.end(history)
    assert bool(check.violations) is is_red
    hanging = HangingTransaction(context)
    hanging.end(history)
    assert bool(hanging.violations) is (is_red and last_stable == 9)


@pytest.mark.parametrize(
    ("fields", "topic", "is_red"),
    [
        ({}, "hot", False),
        ({"outcome": "ok"}, "hot", True),
        ({"timeout_us": 0}, "hot", True),
        ({"producer_id": 8}, "hot", True),
        ({}, "cold", True),
    ],
)
@pytest.mark.parametrize("steps_us", [0, 60_000_000])
def test_only_an_open_transaction_of_the_producer_in_the_partition_may_hold_it_back(
    fields: dict[str, Any], topic: str, is_red: bool, steps_us: int
) -> None:
    """A step of the coordinator's clock delays the end of its transactions by as much."""
    context = check_context()
    log = StubLog(high_watermark=10).as_log()
    context.producers.logs[1, "hot-0"] = LogProducers(log, b"", 0, open={7: 9})
    row = TransactionRow("p", 0, "x", 7, 0, "commit", "unknown", None, 1, 0, 0, 5)
    sent = replace(send(0, 9, 0), topic=topic)
    end = replace(END, last_stable_offset=9, end_us=CLEANUP_US + steps_us + 1)
    history = History(clock_steps_us=steps_us)
    history.add([replace(row, **fields), sent, end])
    check = HangingTransaction(context)
    check.end(history)
    assert bool(check.violations) is is_red


@pytest.mark.parametrize(
    ("steps_us", "producer_id", "is_red"), [(0, 7, True), (30, 7, True), (10_000_000, 7, False), (10_000_000, 8, True)]
)
def test_transaction_holds_back_readers_by_a_step_of_its_coordinators_clock(
    steps_us: int, producer_id: int, is_red: bool
) -> None:
    context = check_context()
    log = StubLog(high_watermark=10).as_log()
    context.producers.logs[1, "hot-0"] = LogProducers(log, b"", 0, open={7: 9})
    check, history = FetchGap(context), History(clock_steps_us=steps_us)
    rest = [replace(row, last_stable_offset=9, end_us=1_000_000) if isinstance(row, EndRow) else row for row in REST]
    row = TransactionRow("p", 0, "x", producer_id, 0, "commit", "unknown", None, 1, 0, 0, 5)
    history.add([*rest, *SENDS, position(0, 0, 5), position(1, 5, 9), *READS, row])
    check.end(history)
    assert bool(check.violations) is is_red


@pytest.mark.clause("F-20")
@pytest.mark.parametrize(("ended_us", "is_red"), [(35, True), (36, False)])
def test_fetcher_is_where_the_last_response_left_it(ended_us: int, is_red: bool) -> None:
    """The fetcher fetches from two nodes at once. The response to the second fetch, at 35, is empty."""
    operations = [*OPERATIONS[:2], operation("f", 0, "fetch", at_us=ended_us - 5), OPERATIONS[3]]
    responses: list[HistoryRow] = [position(0, 0, 10), position(1, 0, 0), read(0, 0, 10)]
    found = broken([*operations, ASSIGNMENT, END, *SENDS, *responses])
    assert found == (["fetch-gap"] if is_red else [])


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


@pytest.mark.parametrize(("what", "is_red"), [("fenced", False), ("removed", True), ("expired", True)])
def test_generation_changes_its_leader_only_with_a_static_member_s_id(what: str, is_red: bool) -> None:
    check = OneGroupLeader(check_context())
    check.trace(note("group_state", 1, group="g", state="Stable", generation=3, leader=A))
    check.trace(TraceRow(0, 0, 0, 2, "group_member", detail=json.dumps({"group": "g", "what": what, "member_id": A})))
    check.trace(note("group_state", 3, group="g", state="Stable", generation=3, leader=B))
    assert bool(judged(check, History())) is is_red


@pytest.mark.parametrize(
    ("group", "partition"), [("g", 103 % 50), ("abc", 4), ("group", 47), ("polygenelubricants", 0), ("", 0)]
)
def test_partition_of_a_group_is_kafka_s(group: str, partition: int) -> None:
    """Java's hashes are 103, 96354, 98629247, -2^31 (whose absolute value Kafka takes to be 0) and 0."""
    assert offsets_partition(group, 50) == partition


def test_group_that_lost_its_log_is_not_judged_and_any_other_is() -> None:
    """There are four offsets partitions. The third keeps group g."""
    for topic, index, is_red in (("__consumer_offsets", 3, False), ("__consumer_offsets", 2, True), ("hot", 3, True)):
        context = check_context()
        for number in range(4):
            state = PartitionImage((0, 1, 2), (0, 1, 2), 0, 0, 0)
            context.replicas.partitions[b"o", number] = Replicated(
                f"__consumer_offsets-{number}", (b"o", number), state, Eligible.of(state, 2)
            )
        context.replicas.excused[topic, index] = None
        check = OneGroupLeader(context)
        for leader in (A, B):
            check.trace(note("group_state", 1, group="g", state="Stable", generation=3, leader=leader))
        assert bool(judged(check, History())) is is_red


def coordinator_with(offset: int | None) -> "Node":
    """Return a coordinator whose committed offset of hot-0 in group g is ``offset``, or which has none."""
    coordinated = StubOffsetsPartition()
    if offset is not None:
        commit = CommitOffset("hot", 0, offset, -1, "", 0)
        coordinated.offsets.appended(1, [(OffsetKey("g", "hot", 0), commit)])
        assert list(coordinated.offsets.replicated(1))
    return StubNode(StubBroker(groups=StubCoordinator([coordinated]))).as_node()


@pytest.mark.parametrize(
    ("held", "commits", "is_red"),
    [
        (10, [], False),
        (None, [], True),
        (9, [], True),
        (11, [], True),
        (9, [commit(B, 2, 9, -1, 200, error="timeout")], False),
        (11, [commit(B, 2, 11, -1, 200)], False),
        (9, [commit(B, 2, 9, -1, 90)], True),
        (11, [commit(B, 2, 11, -1, 200, error="ILLEGAL_GENERATION")], True),
        (9, [commit(B, 2, 9, -1, 90, error="timeout")], False),
    ],
)
def test_coordinator_holds_what_was_committed_last_or_may_have_been(
    held: int | None, commits: list[Any], is_red: bool
) -> None:
    check = NoCommittedLost(check_context())
    check.trace(note("offset_committed", 100, group="g", partition="hot-0", offset=10, generation=1))
    check.inspect(100, 0, coordinator_with(held), None, thorough=True)
    assert bool(judged(check, History(commits=commits))) is is_red
    assert check.evidence == 1


@pytest.mark.parametrize(
    ("led_us", "is_loaded", "is_red"), [(150, False, False), (150, True, True), (-LOADING_US, False, True)]
)
def test_new_coordinator_may_still_load_at_the_end(led_us: int, is_loaded: bool, is_red: bool) -> None:
    check = NoCommittedLost(check_context())
    check.trace(note("offset_committed", 100, group="g", partition="hot-0", offset=10, generation=1))
    check.trace(note("leads", led_us, partition="__consumer_offsets-0"))
    shards = [StubOffsetsPartition()] if is_loaded else []
    images = StubImages(image_of(topic_image("__consumer_offsets")))
    broker = StubBroker(controller=images, groups=StubCoordinator(shards))
    check.inspect(100, 0, StubNode(broker).as_node(), None, thorough=True)
    assert bool(judged(check, History(end_us=200))) is is_red


@pytest.mark.parametrize(
    ("generation", "member", "group", "is_red"),
    [(5, "m", "g", False), (5, "n", "g", True), (5, "m", "other", True), (-1, "", "other", False)],
)
def test_commit_of_a_generation_without_members(generation: int, member: str, group: str, is_red: bool) -> None:
    check, tag = CommitsFenced(check_context()), Tag(8, 8, "f", 0, -1)
    only_member = Member("m", None, "client", "host", 2000, 1000, ())
    groups = {"g": Group.loaded("g", 5, "consumer", "range", "m", 0, (only_member,))}
    node = StubNode(StubBroker(groups=StubCoordinator([StubOffsetsPartition(groups=groups)]))).as_node()
    body = replace(offset_commit_request(member, generation), group_id=GroupId(group))
    response = offset_commit_response(ErrorCode.none)
    check.acted(0, node, Request(1, 7, 8, 8, "f", body, tag), [Reply(1, 7, 8, 8, response, tag)])
    assert bool(check.violations) is is_red


@pytest.mark.parametrize(("at_us", "is_red"), [(299, True), (300, False), (355, False), (356, True)])
def test_owner_is_sent_back_only_between_its_assignment_and_its_read(at_us: int, is_red: bool) -> None:
    from chaos.checks.committed_offsets import Redelivery
    from chaos.tests.test_group_checks import operation as ended
    from chaos.tests.test_group_checks import read as of_member

    history = History(
        operations=[ended(A, 5, "fetch", 50), ended(B, 5, "fetch", 350)],
        commits=[commit(A, 6, 10, 5, 100)],
        memberships=[assigned(A, 1, 0), assigned(B, 2, 300)],
        runs=[of_member(A, 5, 0, 10), of_member(B, 5, 8, 5)],
        resets=[ResetRow(B, 5, "hot", 0, -1, 8, "OFFSET_OUT_OF_RANGE", -1, at_us)],
    )
    assert bool(judged(Redelivery(check_context()), history)) is is_red
