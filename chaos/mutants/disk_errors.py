"""Mutants of what a node does when its disk fails."""

# ruff: noqa: ARG001 - a replacement takes all parameters of its target.

from typing import Any

from chaos.mutants.mutant import Function, mutant
from reference_broker.log.partition_log import Appended, Origin
from reference_broker.ports.disk import DiskError

RECORD_COUNT = slice(57, 61)
"""Where a batch says how many records it has, as a big-endian number."""


@mutant("reference_broker.core.node:Node._sync_failed")
def failed_sync_taken_for_done(original: Function, self: Any, event: Any) -> None:
    """A sync that failed counts as done, so records are acknowledged that no disk has (P-6)."""
    self._syncs.synced(event.token)


@mutant("reference_broker.log.partition_log:PartitionLog.append")
def failed_append_acknowledged(
    original: Function,
    self: Any,
    now: Any,
    records: Any,
    leader_epoch: int,
    *,
    origin: Origin = Origin.CLIENT,
    is_looked_into: bool = False,
    guard: Any = None,
) -> Appended:
    """An append that failed is answered as if it had been done."""
    try:
        appended: Appended = original(
            self, now, records, leader_epoch, origin=origin, is_looked_into=is_looked_into, guard=guard
        )
    except DiskError:
        first = self.log_end_offset
        last = first + int.from_bytes(records[RECORD_COUNT], "big") - 1
        return Appended(first, last, -1, self.log_start_offset, duplicate=True)
    return appended
