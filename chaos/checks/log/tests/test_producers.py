"""Producers of a log: differences from a replay of its bytes, and near misses."""

from collections.abc import Callable
from typing import Any

import pytest

from chaos.checks.log import producer_view
from chaos.checks.log.producers import EMPTIED, AcksReplicated
from chaos.checks.log.tests.checked_log import HOUR_MS, START_MS, CheckedLog, written
from chaos.checks.tests.stub_node import StubNode
from reference_broker.core.events import Note, Reply, Request
from reference_broker.log.config import LogConfig
from reference_broker.log.unified_log import BatchOrigin
from reference_broker.ports.node_ports import Now
from reference_broker.wire.produce import (
    ProducePartition,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
    ProduceTopicResponse,
)
from reference_broker.wire.tags import Tag


@pytest.fixture(autouse=True)
def read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_view, "SKIPPED_CHANGES", 1)


def change(producer_id: int, **fields: Any) -> Callable[[CheckedLog], None]:
    def planted(world: CheckedLog) -> None:
        by_id = world.log.producers.by_id
        by_id[producer_id] = by_id[producer_id]._replace(**fields)

    return planted


def forget(producer_id: int) -> Callable[[CheckedLog], None]:
    return lambda world: world.log.producers.by_id.__delitem__(producer_id)


PLANTED: dict[str, Callable[[CheckedLog], None]] = {
    "an epoch": change(7, producer_epoch=1),
    "a coordinator epoch": change(6, coordinator_epoch=2),
    "a time": change(7, last_timestamp_ms=START_MS - 1),
    "an open transaction that ended": change(6, current_txn_first_offset=8),
    "no open transaction": change(5, current_txn_first_offset=-1),
    "no producer": forget(7),
}


@pytest.mark.parametrize("what", list(PLANTED))
def test_producer_that_is_not_its_replay_is_a_violation(what: str) -> None:
    world = written()
    assert world.looked(thorough=True) == []
    PLANTED[what](world)
    assert "producers-replayed" in world.looked(thorough=True)


def test_batch_that_is_not_remembered_is_a_violation() -> None:
    world = written()
    known = world.log.producers.by_id[7]
    assert len(known.batch_metadata) == 5
    world.log.producers.by_id[7] = known._replace(batch_metadata=known.batch_metadata[1:])
    assert world.looked(thorough=True) == ["producers-replayed"]


def test_start_and_a_truncation_are_judged_by_the_bytes() -> None:
    world = written()
    world.commit(9)
    world.restart()
    assert world.looked() == []
    world.commit(11)
    with world.touched.noted():
        world.log.truncate_to(9)
    assert world.looked() == []
    known = world.log.producers
    assert (world.log.last_stable_offset, sorted(known.open_transactions.values())) == (7, [7, 8])
    known.open_transactions.pop(6)
    assert world.looked(thorough=True) == ["producers-replayed"]


def test_restart_that_loses_a_producer_is_a_violation() -> None:
    world = written()
    with world.touched.noted():
        world.log = world._opened()
    del world.log.producers.by_id[7]
    assert world.looked() == ["producers-replayed"]


def test_idle_producer_may_be_forgotten_and_come_back() -> None:
    world = written(producer_id_expiration_ms=HOUR_MS, unknown_producer_id_policy="accept")
    world.ms += HOUR_MS
    assert world.log.expire_producers(Now(0, world.ms)) == 2
    assert world.looked(thorough=True) == []
    world.data(7, 7, transactional=False)
    assert world.looked(thorough=True) == []
    world.restart()
    assert world.looked() == []


def test_producer_that_expires_too_early_or_with_an_open_transaction_is_a_violation() -> None:
    for producer_id, later_ms in ((7, HOUR_MS - 1), (5, HOUR_MS)):
        world = written(producer_id_expiration_ms=HOUR_MS)
        world.ms += later_ms
        del world.log.producers.by_id[producer_id]
        assert "producers-replayed" in world.looked(thorough=True)


def test_batches_below_the_log_start_may_be_forgotten() -> None:
    world = written(segment_bytes=200)
    world.commit()
    with world.touched.noted():
        world.log.delete_records_before(6)
    assert world.looked(thorough=True) == []
    world.restart()
    assert world.looked() == []
    known = world.log.producers.by_id[7]
    world.log.producers.by_id[7] = known._replace(batch_metadata=known.batch_metadata[:-1])
    assert world.looked(thorough=True) == ["producers-replayed"]


@pytest.mark.clause("P-1")
@pytest.mark.parametrize(("keeps", "offset", "broken"), [(False, 12, False), (True, 12, True), (True, 4, False)])
def test_emptied_log_forgets_the_producers_before_it(keeps: bool, offset: int, broken: bool) -> None:
    world = written()
    before, end = dict(world.log.producers.by_id), world.log.log_end_offset
    world.commit(end)
    with world.touched.noted():
        world.log.truncate_fully_and_start_at(offset, Now(0, world.ms))
    if keeps:
        world.log.producers.by_id[7] = before[7]
    world.checks[0].acted(7, world.node(), None, (Note(EMPTIED, (("partition", "t-0"), ("offset", offset))),))
    assert bool(world.checks[0].violations) == broken


def test_aborted_transaction_that_the_index_lacks_is_a_violation() -> None:
    world = written()
    world.log.segments[-1].aborted.clear()
    assert world.looked(thorough=True) == ["producers-replayed"]


@pytest.mark.clause("X-11")
@pytest.mark.parametrize(("is_cleaned", "broken"), [(True, []), (False, ["producers-replayed"])])
def test_log_that_was_cleaned_before_a_power_loss_need_not_list_what_is_gone(
    is_cleaned: bool, broken: list[str]
) -> None:
    """The power loss took the checkpoint of the cleaner."""
    world = written()
    world.commit()
    world.config = LogConfig(cleanup_policy="compact")
    world.restart()
    if is_cleaned:
        with world.touched.noted():
            world.log.cleaned_offset = world.log.log_end_offset
    assert world.looked() == []
    world.restart()
    assert world.log.cleaned_offset == 0
    world.log.segments[-1].aborted.clear()
    assert world.looked(thorough=True) == broken


MAX_SEQUENCE = 2**31 - 1


@pytest.mark.parametrize(
    ("sequence", "epoch", "broken"),
    [
        (7, 0, []),
        (0, 1, []),
        (6, 0, ["duplicate"]),
        (8, 0, ["duplicate"]),
        (0, 0, ["duplicate"]),
        (7, 1, ["duplicate"]),
    ],
)
def test_batch_has_the_next_sequence_or_begins_a_greater_epoch(sequence: int, epoch: int, broken: list[str]) -> None:
    world = written()
    world.data(7, sequence, epoch=epoch, transactional=False, origin=BatchOrigin.BROKER)
    assert world.looked() == broken


def test_sequence_0_follows_the_last_one_and_a_smaller_epoch_follows_none() -> None:
    world = CheckedLog(unknown_producer_id_policy="accept")
    world.data(7, MAX_SEQUENCE, epoch=3, transactional=False)
    world.data(7, 0, epoch=3, transactional=False)
    assert world.looked() == []
    world.data(7, 0, epoch=2, transactional=False, origin=BatchOrigin.BROKER)
    assert "duplicate" in world.looked()


@pytest.mark.parametrize(
    ("led_by", "fast_ms", "sequence", "broken"),
    [
        (2, 1, 0, []),
        (2, 0, 0, ["duplicate"]),  # The producer was alive by the leader's clock, too.
        (3, 1, 0, ["duplicate"]),  # The fast clock is not the leader's.
        (2, 1, 5, ["duplicate"]),  # An unknown producer begins at 0.
    ],
)
def test_follower_copies_what_follows_an_expiration_by_the_clock_of_the_leader(
    led_by: int, fast_ms: int, sequence: int, broken: list[str]
) -> None:
    follower, leader = (written(producer_id_expiration_ms=HOUR_MS, unknown_producer_id_policy="reject") for _ in "12")
    view = follower.context.producers
    follower.view.leaders["t-0", 0].add(led_by)
    for node_id in (2, 3):
        view.logs[node_id, "t-0"] = leader.context.producers.logs[1, "t-0"]
        view.wall_ms[node_id] = START_MS
    view.wall_ms[2] = START_MS + HOUR_MS - 1 + fast_ms
    follower.ms += HOUR_MS - 1
    follower.data(7, sequence, transactional=False, origin=BatchOrigin.BROKER)
    assert follower.looked() == broken


@pytest.mark.parametrize(
    ("epoch", "coordinator", "broken"), [(1, 3, []), (1, 4, []), (1, 2, ["duplicate"]), (0, 3, ["duplicate"])]
)
def test_marker_has_no_smaller_epochs_than_the_one_before(epoch: int, coordinator: int, broken: list[str]) -> None:
    world = CheckedLog()
    world.data(5, 0, epoch=1)
    world.marker(5, epoch=1, coordinator=3)
    world.marker(5, epoch=epoch, coordinator=coordinator)
    assert world.looked() == broken


@pytest.mark.parametrize(
    ("sequence", "offset", "broken"), [(3, 3, []), (3, 4, ["duplicate"]), (3, -1, ["duplicate"]), (6, 6, [])]
)
def test_repeated_batch_is_acknowledged_at_its_offset(sequence: int, offset: int, broken: list[str]) -> None:
    world = written()
    _acknowledged(world, sequence, offset)
    assert world.looked(thorough=True) == broken


def test_batches_acknowledged_before_restart_are_not_judged() -> None:
    world = written()
    _acknowledged(world, 3, 4)
    for check in world.checks:
        check.acted(7, world.node(), None, [])
    assert world.looked(thorough=True) == []


@pytest.mark.parametrize(
    ("high_watermark", "acks", "offset", "broken"),
    [(3, -1, 3, True), (4, -1, 3, False), (3, 1, 3, False), (4, -1, -1, True), (4, 1, -1, False)],
)
def test_batch_is_acknowledged_with_acks_all_when_it_is_replicated(
    high_watermark: int, acks: int, offset: int, broken: bool
) -> None:
    world = CheckedLog()
    for sequence in range(5):
        world.data(7, sequence, transactional=False)
    world.commit(high_watermark)
    world.checks = [AcksReplicated(world.context)]
    _acknowledged(world, 3, offset, acks)
    assert bool(world.checks[0].violations) is broken
    world.process = StubNode()
    world.checks = [AcksReplicated(world.context)]
    node = world.node()
    node.broker.partitions.by_id.clear()
    _acknowledged(world, 3, 3, acks, node)
    assert not world.checks[0].violations


def _acknowledged(world: CheckedLog, sequence: int, offset: int, acks: int = -1, node: Any = None) -> None:
    data = world.batch(7, sequence, transactional=False)
    topic = ProduceTopic("t", bytes(16), [ProducePartition(0, data)])
    tag = Tag(0, 9, "p")
    request = Request(1, 1, 0, 9, "p", ProduceRequest(acks, 100, [topic]), tag)
    response = ProduceResponse([ProduceTopicResponse("t", bytes(16), [ProducePartitionResponse(0, 0, offset)])])
    for check in world.checks:
        check.acted(7, node or world.node(), request, [Reply(1, 1, 0, 9, response, tag)])


def test_log_without_transactions_is_read_at_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_view, "SKIPPED_CHANGES", 3)
    world = written()
    world.marker(5)
    assert world.looked() == []
    for sequence, broken in ((9, []), (11, []), (13, ["duplicate"])):
        world.data(7, sequence, transactional=False, origin=BatchOrigin.BROKER)
        assert world.looked() == broken
    world = written()
    world.data(5, 3, origin=BatchOrigin.BROKER)
    assert world.looked() == ["duplicate"]  # A transaction is open.


@pytest.mark.parametrize(
    ("policy", "sequence", "broken"),
    [("delete", 9, True), ("compact", 9, False), ("compact", 5, True), ("delete", 7, False)],
)
def test_sequence_may_skip_others_only_in_a_compacted_topic(policy: str, sequence: int, broken: bool) -> None:
    world = CheckedLog(cleanup_policy=policy)
    for each in range(7):
        world.data(7, each, transactional=False, origin=BatchOrigin.BROKER)
    world.data(7, sequence, transactional=False, origin=BatchOrigin.BROKER)
    assert ("duplicate" in world.looked()) is broken
