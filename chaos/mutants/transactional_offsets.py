"""Mutants of offsets that a transaction commits (X-8). A scenario that plays transactions lists them."""

# ruff: noqa: ARG001 - a replacement takes all parameters of its target.

from typing import Any

from chaos.mutants.mutant import Function, mutant
from reference_broker.wire.errors import Error, ErrorCode

COMMITTED_OFFSETS = "reference_broker.groups.offsets.committed_offsets"


@mutant(f"{COMMITTED_OFFSETS}:CommittedOffsets._replicated_pending")
def offsets_visible_before_commit(original: Function, self: Any, batch: Any) -> None:
    """What a transaction commits is seen as soon as it is replicated (X-8)."""
    original(self, batch)
    for key, commit in batch.changes:
        self._apply(key, commit, batch.end_offset)


@mutant(f"{COMMITTED_OFFSETS}:CommittedOffsets.ended")
def offsets_kept_after_abort(original: Function, self: Any, end_offset: int, producer_id: int, is_commit: bool) -> None:
    """An abort marker makes pending offsets visible as a commit marker does (X-8)."""
    original(self, end_offset, producer_id, is_commit=True)


@mutant("reference_broker.groups.state.group:Group.check_transactional_commit")
def generation_not_checked_in_transaction(
    original: Function, self: Any, member_id: str, group_instance_id: str | None, generation: int
) -> Error:
    """A zombie of an earlier generation may commit offsets in its transaction (X-8, KIP-447)."""
    error = original(self, member_id, group_instance_id, generation)
    refused = (ErrorCode.illegal_generation, ErrorCode.unknown_member_id, ErrorCode.fenced_instance_id)
    return ErrorCode.none if error in refused else error
