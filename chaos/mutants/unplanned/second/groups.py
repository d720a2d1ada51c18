"""Second set: rebalances, sessions and static members of groups, their offsets, and what a coordinator loads."""

# ruff: noqa: ARG001 - a replacement takes all parameters of its target.

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from chaos.mutants.mutant import Function, mutant
from reference_broker.groups.committed_offsets import OffsetKey
from reference_broker.groups.group import GroupState
from reference_broker.groups.rebalances import remove_member
from reference_broker.groups.records import read_key
from reference_broker.wire.errors import Error, ErrorCode

GROUP = "reference_broker.groups.group:Group"


# --- members ----------------------------------------------------------------------------------------------------------


@mutant("reference_broker.groups.rebalances:_remove_members_not_joined")
def absent_static_member_removed(original: Function, served: Any) -> None:
    """A static member that has not joined again when the rebalance timeout is over is removed before its session ends
    (KIP-345)."""
    for member in tuple(served.group.members.values()):
        if not served.group.has_joined(member.member_id):
            remove_member(served, member.member_id, "expired")


@mutant("reference_broker.groups.rebalances:_is_repeated")
def join_of_leader_taken_for_retry(original: Function, group: Any, member: Any, request: Any) -> bool:
    """The leader of a stable group that joins again gets the present generation, and no rebalance. A change of the
    topics' partitions is never assigned (KIP-62)."""
    is_stable = group.state is GroupState.STABLE and member.protocols == request.protocols
    return is_stable or bool(original(group, member, request))


@mutant("reference_broker.groups.served_group:ServedGroup.restart_session")
def shorter_session_not_armed_again(original: Function, self: Any, member_id: str, timeout_ms: int) -> None:
    """The timer of a session is not set again for an earlier end. A new member that dies after its first generation is
    removed only after the longer timeout of new members (KIP-62)."""
    session = self.sessions.get(member_id)
    if session is None:
        original(self, member_id, timeout_ms)
    else:
        session.deadline_us = self.context.ports.now().mono_us + timeout_ms * 1000


@mutant(f"{GROUP}.check_member")
def replaced_static_member_not_fenced(
    original: Function, self: Any, member_id: str, group_instance_id: str | None
) -> Error:
    """A static member that was replaced by another process of its group.instance.id gets UNKNOWN_MEMBER_ID, and not
    FENCED_INSTANCE_ID, so that it joins again (KIP-345)."""
    error: Error = original(self, member_id, group_instance_id)
    return ErrorCode.unknown_member_id if error is ErrorCode.fenced_instance_id else error


# --- offsets ----------------------------------------------------------------------------------------------------------


@mutant(f"{GROUP}.check_commit")
def commit_accepted_before_assignment(
    original: Function, self: Any, member_id: str, group_instance_id: str | None, generation: int
) -> Error:
    """A commit between JoinGroup and SyncGroup is accepted, although its member does not know yet whether it still owns
    the partition (X-14, KIP-62)."""
    error: Error = original(self, member_id, group_instance_id, generation)
    return ErrorCode.none if error is ErrorCode.rebalance_in_progress else error


@mutant(f"{GROUP}.is_subscribed_to")
def subscriptions_of_group_ignored(original: Function, self: Any, topic: str) -> bool:
    """Offsets of topics to which a stable group is subscribed expire with ``offsets.retention.minutes``, and
    OffsetDelete removes them (KIP-211, KIP-496)."""
    return False


@mutant("reference_broker.groups.offset_metadata_manager:_fetched")
def first_pending_offset_is_stable(
    original: Function, shard: Any, group_id: str, requested: Any, requires_stable: bool
) -> list[Any]:
    """OffsetFetch with require_stable returns -1 for a partition that only an open transaction has committed so far,
    and not UNSTABLE_OFFSET_COMMIT (X-8, KIP-447)."""
    offsets = original(shard, group_id, requested, requires_stable)
    visible = shard.offsets.find
    return [
        replace(
            offset,
            is_unstable=offset.is_unstable and visible(OffsetKey(group_id, offset.topic, offset.partition)) is not None,
        )
        for offset in offsets
    ]


# --- what a coordinator loads -----------------------------------------------------------------------------------------


@mutant("reference_broker.coordination.coordinator_shards:Loading._records")
def loaded_up_to_high_watermark(original: Function, self: Any, log: Any) -> Iterator[Any]:
    """A coordinator that takes over loads the records below its high watermark only, which is behind what the former
    coordinator has acknowledged (X-2, M-8)."""
    for found in original(self, log):
        if found is not None and found[1].offset >= log.high_watermark:
            return
        yield found


@mutant("reference_broker.groups.group_coordinator_shard:OffsetsPlayback.replay")
def offset_tombstones_not_loaded(original: Function, self: Any, header: Any, record: Any, end_offset: int) -> None:
    """A coordinator that loads skips the tombstones of offsets, so that deleted and expired offsets are back after a
    failover (M-8, KIP-496)."""
    is_tombstone = not header.is_control and record.value is None
    if not (is_tombstone and isinstance(read_key(record.key or b""), OffsetKey)):
        original(self, header, record, end_offset)
