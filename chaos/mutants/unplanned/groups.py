"""Mutants of groups that no scenario names: pending offsets, parked requests, sessions, and what a takeover finds."""

# ruff: noqa: ARG001 - a replacement takes all parameters of its target.

from collections.abc import Generator
from dataclasses import replace
from typing import Any

from chaos.mutants.mutant import Function, mutant
from reference_broker.groups import membership, rebalances
from reference_broker.groups.group import GroupState
from reference_broker.wire.errors import Error, ErrorCode, error_name

OFFSETS = "reference_broker.groups.committed_offsets"
MEMBERSHIP = "reference_broker.groups.membership"


@mutant(f"{OFFSETS}:PendingOffsets.forget")
def pending_commit_outlives_removal(original: Function, self: Any, key: Any) -> None:
    """An offset that is removed while a transaction has committed it comes back with the commit marker (X-8)."""


@mutant(f"{OFFSETS}:CommittedOffsets._is_newer")
def older_pending_commit_wins(original: Function, self: Any, key: Any, pending: Any) -> bool:
    """The commit of a transaction replaces a later one that came before its marker, so that the group goes back
    (KAFKA-5247, X-8)."""
    return True


@mutant("reference_broker.groups.rebalances:_respond_to_sync")
def no_session_after_sync(original: Function, served: Any, member_id: str, response: Any) -> None:
    """A member whose session ended while its SyncGroup was parked gets no new one, so that it stays a member when it
    dies later (KIP-62)."""
    served.respond_to_sync(member_id, response)


@mutant(f"{MEMBERSHIP}:_assign")
def late_write_stabilises_next_generation(original: Function, served: Any, assignments: dict[str, bytes]) -> None:
    """An assignment that is replicated only when the next generation has begun makes that one Stable, and its members
    get no partitions (KIP-62)."""
    group, generation = served.group, served.group.generation
    for member in group.members.values():
        member.assignment = assignments.get(member.member_id, b"")
    served.assigned = generation

    def written(error: Error) -> None:
        served.assigned = 0 if served.assigned == generation else served.assigned
        if not served.partition.is_led or group.state is not GroupState.COMPLETING_REBALANCE:
            return
        if not error:
            rebalances.stabilise(served)
        else:
            rebalances.fail_syncs(served, error)
            rebalances.prepare_or_complete(served, f"assignment not stored: {error_name(error)}")

    served.partition.write_group(group, written)


@mutant(f"{MEMBERSHIP}:_keep_generation")
def new_id_of_static_member_not_written(
    original: Function, served: Any, request: Any, member_id: str, old_id: str, old_leader: str, old: Any
) -> None:
    """A static member that restarts gets its new ID before that is written, and it never is. The next coordinator loads
    the old ID, and fences the member (KIP-345)."""
    served.respond_to_join(member_id, membership._kept(served, request, member_id, old_leader))
    served.restart_session(member_id, served.group.members[member_id].session_timeout_ms)


@mutant("reference_broker.groups.offsets_partition:OffsetsPartition.when_settled")
def loaded_offsets_served_too_early(original: Function, self: Any, requires_stable: bool, settled: Any) -> None:
    """A coordinator that has just loaded returns offsets before all that it loaded is replicated, and so an older one
    than was acknowledged (M-8)."""
    loaded_end, self.loaded_end = self.loaded_end, 0
    try:
        original(self, requires_stable, settled)
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


@mutant(f"{MEMBERSHIP}:Membership.serve")
def no_sessions_at_takeover(original: Function, self: Any, partition: Any, group: Any) -> Any:
    """The members of a group that is loaded have no sessions. One that died with the former coordinator keeps its
    partitions (KIP-62)."""
    is_new = group.group_id not in self._served.get(partition, {})
    served = original(self, partition, group)
    if is_new:
        for member_id in group.members:
            served.end_session(member_id)
    return served


@mutant(f"{MEMBERSHIP}:Membership._drop")
def parked_requests_dropped_at_loss(original: Function, self: Any, served: Any) -> Generator[None, None, None]:
    """The JoinGroup and SyncGroup requests that are parked when another node takes over get no response. Members find
    the new coordinator only after their request timeout (KIP-62)."""
    for each in served.values():
        self._end(each)
    yield from ()


@mutant("reference_broker.groups.rebalances:generation_response")
def followers_get_the_members(original: Function, group: Any, member_id: str) -> Any:
    """Every member gets the members of the generation, and each that assigns takes itself for the leader (KIP-62)."""
    return replace(original(group, member_id), members=rebalances.joined_members(group))


@mutant("reference_broker.groups.rebalances:assignment_response")
def parked_syncs_get_no_assignment(original: Function, group: Any, member: Any) -> Any:
    """A member whose SyncGroup came before the leader's gets an empty assignment, and reads nothing until the next
    rebalance (KIP-62)."""
    response = original(group, member)
    return replace(response, assignment=b"") if member.awaits_sync and member.member_id != group.leader else response


@mutant("reference_broker.groups.group:Group.elect_joined_leader")
def leader_is_the_last_to_join(original: Function, self: Any) -> bool:
    """A leader that has joined again loses its role to another member (KIP-62)."""
    found: bool = original(self)
    joined = [each.member_id for each in self.members.values() if each.awaits_join]
    self.leader = joined[-1] if joined else self.leader
    return found


@mutant("reference_broker.groups.group:SupportedProtocols.select")
def protocol_of_the_first_member(original: Function, self: Any, members: Any) -> str:
    """The first protocol of the longest member is selected, whether or not the others support it (KIP-62)."""
    name: str = next(iter(members)).protocols[0].name
    return name


@mutant("reference_broker.groups.group:Group.update")
def metadata_of_first_join_kept(
    original: Function, self: Any, member: Any, protocols: Any, rebalance_timeout_ms: int, session_timeout_ms: int
) -> None:
    """A member that joins again keeps the metadata of its first JoinGroup, so that the leader assigns by an old
    subscription (KIP-62)."""
    original(self, member, member.protocols, rebalance_timeout_ms, session_timeout_ms)


@mutant("reference_broker.groups.rebalances:prepare_or_complete")
def join_waits_for_the_rebalance_timeout(original: Function, served: Any, reason: str) -> None:
    """A rebalance in progress ends only with its timeout, also where the last member has joined (KIP-62)."""
    if served.group.can_rebalance:
        original(served, reason)


@mutant("reference_broker.groups.rebalances:_delay_over")
def initial_delay_prolonged_for_ever(original: Function, served: Any, delay_ms: int, remaining_ms: int) -> None:
    """The initial delay is prolonged beyond the rebalance timeout while members come (KIP-134)."""
    original(served, delay_ms, max(remaining_ms, 1000))


@mutant("reference_broker.groups.served_group:ServedGroup.restart_session")
def session_a_tenth_too_short(original: Function, self: Any, member_id: str, timeout_ms: int) -> None:
    """The session of a member ends after nine tenths of its timeout (KIP-62)."""
    original(self, member_id, timeout_ms * 9 // 10)


@mutant("reference_broker.groups.served_group:ServedGroup.restart_session")
def session_a_second_too_long(original: Function, self: Any, member_id: str, timeout_ms: int) -> None:
    """The session of a member ends a second after its timeout (KIP-62)."""
    original(self, member_id, timeout_ms + 1000)


@mutant("reference_broker.groups.rebalances:_sync_over")
def late_syncs_wait_for_ever(original: Function, served: Any) -> None:
    """The timer of a generation is not armed: a member that never syncs stays (KIP-62)."""
    served.timer = None


@mutant("reference_broker.groups.group:Group.check_commit")
def simple_commits_to_a_stable_group(
    original: Function, self: Any, member_id: str, group_instance_id: str | None, generation: int
) -> Error:
    """A consumer that assigns itself commits to a group with members (KIP-447)."""
    error: Error = original(self, member_id, group_instance_id, generation)
    return ErrorCode.none if generation < 0 else error


@mutant("reference_broker.groups.group:Group.check_member")
def successor_does_not_fence(original: Function, self: Any, member_id: str, group_instance_id: str | None) -> Error:
    """A static member is checked by its ID alone, and gets UNKNOWN_MEMBER_ID where its successor fences it
    (KIP-345)."""
    error: Error = original(self, member_id, None)
    return error


@mutant(f"{MEMBERSHIP}:Membership.heartbeat")
def heartbeat_hides_the_rebalance(
    original: Function, self: Any, group_id: str, member_id: str, group_instance_id: str | None, generation: int
) -> Error:
    """A member that sends a heartbeat in a rebalance is not sent to join again (KIP-62)."""
    error: Error = original(self, group_id, member_id, group_instance_id, generation)
    return ErrorCode.none if error is ErrorCode.rebalance_in_progress else error


@mutant("reference_broker.groups.group:Group.accepts")
def group_one_member_too_large(original: Function, self: Any, member_id: str, max_size: int) -> bool:
    """A group takes one member more than group.max.size (KIP-389)."""
    accepted: bool = original(self, member_id, max_size + 1)
    return accepted


@mutant("reference_broker.groups.offset_cleanup:_expires_ms")
def offsets_expire_at_once(original: Function, group: Any, commit: Any, retention_ms: int) -> int | None:
    """The retention time of offsets is taken for seconds instead of minutes, and all but used offsets go (KIP-211)."""
    found: int | None = original(group, commit, 0)
    return found


@mutant("reference_broker.groups.offsets_partition:OffsetsPlayback.replay")
def tombstones_of_offsets_not_replayed(
    original: Function, self: Any, header: Any, record: Any, end_offset: int
) -> None:
    """A coordinator that loads ignores the removal of offsets, and they are back (M-8)."""
    if record.value is not None or header.is_control:
        original(self, header, record, end_offset)


@mutant("reference_broker.groups.records:group_value")
def session_timeout_written_as_rebalance_timeout(original: Function, group: Any) -> bytes:
    """The record of a group has the session timeout of its members in both places. The next coordinator gives them that
    time to join (KIP-62)."""
    kept = [(each, each.rebalance_timeout_ms) for each in group.members.values()]
    for each, _ in kept:
        each.rebalance_timeout_ms = each.session_timeout_ms
    value: bytes = original(group)
    for each, timeout_ms in kept:
        each.rebalance_timeout_ms = timeout_ms
    return value


@mutant("reference_broker.groups.offset_commits:_fetched")
def open_transactions_look_stable(
    original: Function, target: Any, group_id: str, wanted: Any, requires_stable: bool
) -> Any:
    """OffsetFetch with require_stable returns the offset before an open transaction instead of
    UNSTABLE_OFFSET_COMMIT (X-8)."""
    return original(target, group_id, wanted, False)
