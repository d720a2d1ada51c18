"""Mutants of consumer groups: a coordinator's checks and waits, and its load at a takeover."""

# ruff: noqa: ARG001 - a replacement takes all parameters of its target.

from typing import Any

from chaos.mutants.mutant import Function, mutant
from reference_broker.groups.records import GroupKey
from reference_broker.wire.errors import Error, ErrorCode


@mutant("reference_broker.groups.group:Group.check_commit")
def generation_not_checked(
    original: Function, self: Any, member_id: str, group_instance_id: str | None, generation: int
) -> Error:
    """A member of an earlier generation may still commit."""
    error = original(self, member_id, group_instance_id, generation)
    return ErrorCode.none if error in (ErrorCode.illegal_generation, ErrorCode.unknown_member_id) else error


@mutant("reference_broker.coordination.log:CoordinatorLog._await_replication")
def commit_before_replicated(original: Function, self: Any, end_offset: int, replicated: Any) -> None:
    """A commit is acknowledged as soon as it is in the coordinator's own log (M-8)."""
    replicated(ErrorCode.none)


@mutant("reference_broker.groups.group_coordinator_shard:read_key")
def offsets_not_loaded(original: Function, data: bytes) -> Any:
    """After a takeover a coordinator loads the groups, but not their offsets (M-8)."""
    key = original(data)
    return key if isinstance(key, GroupKey) else None


@mutant("reference_broker.groups.group_coordinator_shard:read_key")
def groups_not_loaded(original: Function, data: bytes) -> Any:
    """After a takeover a coordinator loads the offsets, but not the groups."""
    key = original(data)
    return None if isinstance(key, GroupKey) else key


@mutant("reference_broker.groups.group:Group.init_next_generation")
def generation_not_advanced(original: Function, self: Any, now_ms: int) -> None:
    """A rebalance does not advance the generation."""
    original(self, now_ms)
    self.generation = max(self.generation - 1, 1)


@mutant("reference_broker.groups.offset_metadata_manager:OffsetMetadataManager._write")
def commits_of_simple_consumers_dropped(original: Function, self: Any, validation: Any, respond: Any) -> None:
    """A commit of a client that is no member of the group is acknowledged but not written."""
    if validation.request.generation < 0 and validation.request.transaction is None:
        respond(validation.errors)
    else:
        original(self, validation, respond)
