"""Removal of offsets that open transactions have committed (X-8, KIP-98, KIP-211)."""

import pytest

from reference_broker.groups.tests.test_cleaning import CHECK_MS, MINUTE_MS, led
from reference_broker.groups.tests.test_commits import deleted
from reference_broker.groups.tests.test_transactional_commits import NOTHING, UNSTABLE
from reference_broker.wire.errors import Error, ErrorCode

RETENTION_MS = 10 * MINUTE_MS


@pytest.mark.clause("OffsetMetadataManagerTest.testCleanupExpiredOffsetsWithPendingTransactionalOffsets")
@pytest.mark.parametrize("reloaded", [False, True])
def test_offset_with_pending_transactional_commit_does_not_expire(reloaded: bool) -> None:
    world, _, group = led()
    world.commit(group, 5, 6)
    world.transact(group, 7)
    if reloaded:
        world.lead_offsets(0, world.lose(0), epoch=1)
    world.pass_ms(RETENTION_MS + 2 * CHECK_MS)
    assert world.fetched(group) == {("t", 0): 5}
    world.end(0, commit=False)
    world.pass_ms(2 * CHECK_MS)
    assert (world.fetched(group), world.active(0).groups) == ({}, {})


@pytest.mark.clause("OffsetMetadataManagerTest.testCleanupExpiredOffsetsWithPendingTransactionalOffsetsOnly")
@pytest.mark.parametrize("commit", [True, False])
def test_group_with_only_pending_offsets_stays_until_marker(commit: bool) -> None:
    """After a commit it has an offset, whose retention starts with the commit. Otherwise the next check removes it."""
    world, target, group = led()
    world.transact(group, 7)
    world.pass_ms(RETENTION_MS // 2)
    assert list(target.groups) == [group]
    world.end(0, commit=commit)
    world.pass_ms(2 * CHECK_MS)
    assert (list(target.groups), world.fetched(group)) == (([group], {("t", 0): 7}) if commit else ([], {}))
    world.pass_ms(RETENTION_MS // 2)
    assert (target.groups, world.fetched(group)) == ({}, {})


def test_hanging_transaction_keeps_its_offsets() -> None:
    world, target, group = led()
    world.transact(group, 7)
    world.pass_ms(3 * RETENTION_MS)
    assert list(target.groups) == [group]
    assert world.stable(group) == [UNSTABLE, NOTHING, NOTHING]
    assert world.commit(group, 8) == [[ErrorCode.none]]
    assert world.fetched(group) == {("t", 0): 8}
    world.end(0, commit=True)
    assert world.stable(group) == [(8, ErrorCode.none), NOTHING, NOTHING]


@pytest.mark.clause("OffsetMetadataManagerTest.testGenericGroupOffsetDeleteWithPendingTransactionalOffsets")
def test_deleted_offset_is_not_pending() -> None:
    world, _, group = led()
    world.transact(group, 5, 6)
    assert deleted(world, group, ("t", 0)) == [(ErrorCode.none, [ErrorCode.none])]
    assert world.stable(group) == [NOTHING, UNSTABLE, NOTHING]
    world.end(0, commit=True)
    assert world.fetched(group) == {("t", 1): 6}


@pytest.mark.clause("OffsetMetadataManagerTest.testDeleteGroupAllOffsetsWithPendingTransactionalOffsets")
@pytest.mark.parametrize("reloaded", [False, True])
def test_deleted_group_has_no_pending_offsets(reloaded: bool) -> None:
    world, _, group = led()
    world.commit(group, 1)
    world.transact(group, 5, 6)
    errors: list[Error] = []
    world.groups.group_manager.delete_group(group, errors.append)
    assert errors == [ErrorCode.none]
    world.end(0, commit=True)
    if reloaded:
        world.lead_offsets(0, world.lose(0), epoch=1)
        world.pass_ms(0)
    assert (world.fetched(group), world.active(0).groups) == ({}, {})
    assert world.stable(group) == [NOTHING, NOTHING, NOTHING]


def test_deleted_topic_has_no_pending_offsets() -> None:
    world, _, group = led()
    world.show(t=3, u=1)
    world.transact(group, 5, 6)
    world.transact(group, 7, topic="u")
    world.delete_topic("t")
    world.pass_ms(0)
    world.end(0, commit=True)
    assert world.fetched(group) == {("u", 0): 7}


def test_load_drops_pending_offsets_of_deleted_topic() -> None:
    world, _, group = led()
    world.transact(group, 5)
    log = world.lose(0)
    world.show(u=1)
    world.lead_offsets(0, log, epoch=1)
    world.pass_ms(0)
    world.end(0, commit=True)
    assert world.fetched(group) == {}
