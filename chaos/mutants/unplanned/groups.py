"""Mutants of groups that no scenario names: pending offsets, parked requests, sessions, and what a takeover finds."""

# ruff: noqa: ARG001 - a replacement takes all parameters of its target.

from collections.abc import Generator
from typing import Any

from chaos.mutants.mutant import Function, mutant
from reference_broker.groups import rebalances
from reference_broker.groups.group import GroupState
from reference_broker.wire.errors import error_name

OFFSETS = "reference_broker.groups.committed_offsets"
MEMBERSHIP = "reference_broker.groups.group_metadata_manager"
REBALANCES = "reference_broker.groups.rebalances"


@mutant(f"{OFFSETS}:PendingOffsets.forget")
def pending_commit_outlives_removal(original: Function, self: Any, key: Any) -> None:
    """An offset that is removed while a transaction has committed it comes back with the commit marker (X-8)."""


@mutant(f"{OFFSETS}:CommittedOffsets._is_newer")
def older_pending_commit_wins(original: Function, self: Any, key: Any, pending: Any) -> bool:
    """The commit of a transaction replaces a later one that came before its marker, so that the group goes back
    (KAFKA-5247, X-8)."""
    return True


@mutant(f"{REBALANCES}:_respond_to_sync")
def no_session_after_sync(original: Function, served: Any, member_id: str, response: Any) -> None:
    """A member whose session ended while its SyncGroup was parked gets no new one, so that it stays a member when it
    dies later (KIP-62)."""
    served.group.respond_to_sync(member_id, response)


@mutant(f"{REBALANCES}:_store_assignment")
async def late_write_stabilises_next_generation(original: Function, served: Any, assignments: dict[str, bytes]) -> None:
    """An assignment that is replicated only when the next generation has begun makes that one Stable, and its members
    get no partitions (KIP-62)."""
    group, generation = served.group, served.group.generation
    for member in group.members.values():
        member.assignment = assignments.get(member.member_id, b"")
    served.storing_generation = generation
    error = await served.shard.write_group(group)
    if served.storing_generation == generation:
        served.storing_generation = 0
    if not served.shard.is_led or group.state is not GroupState.COMPLETING_REBALANCE:
        return
    if not error:
        rebalances.propagate_assignment(served)
    else:
        rebalances.reset_and_propagate_assignment_with_error(served, error)
        rebalances.maybe_prepare_rebalance_or_complete_join(served, f"assignment not stored: {error_name(error)}")


@mutant(f"{REBALANCES}:_keep_generation")
async def new_id_of_static_member_not_written(
    original: Function, served: Any, request: Any, member_id: str, old_member: Any, old_leader: str
) -> None:
    """A static member that restarts gets its new ID before that is written, and it never is. The next coordinator loads
    the old ID, and fences the member (KIP-345)."""
    response = rebalances._response_of_kept_generation(served, request, member_id, old_leader)
    served.group.respond_to_join(member_id, response)
    served.restart_session(member_id, served.group.members[member_id].session_timeout_ms)


@mutant("reference_broker.groups.group_coordinator_shard:GroupCoordinatorShard._settled_end")
def loaded_offsets_served_too_early(original: Function, self: Any, requires_stable: bool) -> int:
    """A coordinator that has just loaded returns offsets before all that it loaded is replicated, and so an older one
    than was acknowledged (M-8)."""
    loaded_end, self.loaded_end = self.loaded_end, 0
    try:
        return int(original(self, requires_stable))
    finally:
        self.loaded_end = loaded_end


@mutant("reference_broker.groups.group:Group.expires_from_ms")
def retention_counts_from_the_commit(original: Function, self: Any, commit_timestamp_ms: int) -> int | None:
    """The retention time of an empty group's offsets counts from their commit, and not from when its last member left.
    Offsets of quiet partitions are gone at once (KIP-211)."""
    if self.state is GroupState.EMPTY:
        return commit_timestamp_ms
    found: int | None = original(self, commit_timestamp_ms)
    return found


@mutant(f"{MEMBERSHIP}:GroupMetadataManager.serve")
def no_sessions_at_takeover(original: Function, self: Any, shard: Any, group: Any) -> Any:
    """The members of a group that is loaded have no sessions. One that died with the former coordinator keeps its
    partitions (KIP-62)."""
    is_new = group.group_id not in self._served.get(shard, {})
    served = original(self, shard, group)
    if is_new:
        for member_id in group.members:
            served.end_session(member_id)
    return served


@mutant(f"{MEMBERSHIP}:GroupMetadataManager._drop")
def parked_requests_dropped_at_loss(original: Function, self: Any, served: Any) -> Generator[None, None, None]:
    """The JoinGroup and SyncGroup requests that are parked when another node takes over get no response. Members find
    the new coordinator only after their request timeout (KIP-62)."""
    for each in served.values():
        self._end(each)
    yield from ()
