"""Checkpoint files compared with what a power loss would leave.

A start trusts these files, so a claim that is ahead of the disk turns a power loss into damage, or lets lost records
count as kept (E-7). The simulated disk knows what is durable, so no power loss is needed to see it. Sources: Kafka's
``recovery-point-offset-checkpoint`` (records below it need no recovery), ``cleaner-offset-checkpoint`` and
``.kafka_cleanshutdown`` (LogManager); ``synced-offset-checkpoint`` is this broker's own (README of the log).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from chaos.checks.check import Check, CheckContext, Inspection
from chaos.checks.log.batches import batches_of
from chaos.checks.log.log_folders import DURABLE_CLAIMS, offset_in
from chaos.interceptor.watched_disk import WatchedDisk
from chaos.sim.disk import SimDisk
from reference_broker.core.events import Event
from reference_broker.log.unified_log import UnifiedLog

if TYPE_CHECKING:
    from reference_broker.core.node import Node

CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
RECORDS = ".log"
_HAS_RECORDS = re.compile(r"\d{20}\.log").fullmatch
CLAIMS = tuple(f"{name}{suffix}" for name in DURABLE_CLAIMS for suffix in ("", ".new"))
"""Files with an offset below which all is durable. A start takes a new file that is to replace one for it."""


def simulated(disk: object) -> SimDisk | None:
    """Return the disk that knows what is durable, if the node has one."""
    inner = getattr(disk, "inner", disk)
    return inner if isinstance(inner, SimDisk) else None


@dataclass(slots=True)
class _Claims:
    """The claims of one log, as last seen."""

    log: UnifiedLog
    of_files: dict[str, int] = field(default_factory=dict)
    cleaned_offset: int = 0
    cuts: int = 0
    """number of the log's last truncation"""
    scanned: tuple[str, int, int] = ("", 0, 0)
    """a file of which only a part is durable, with the size and the end offset of its durable batches"""


class ClaimsDurable(Check):
    """log-consistent: what a log's files say is durable is durable, or was removed since.

    - The recovery point and the synced offset are not beyond the log's end, and no power loss takes a record below
      them.
    - The cleaner removes a record only if a newer one of its key is durable (E-7), so all records below the offset
      where a pass has ended are durable.

    Physical: a log that is offline or damaged, or whose folder was never synced, is not judged.
    """

    guarantee = "log-consistent"

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._logs: dict[tuple[int, str], _Claims] = {}
        context.replicas.on_logs_touched.append(self.logs_touched)

    def logs_touched(self, at_us: int, node: "Node", touched: Sequence[UnifiedLog], thorough: bool) -> None:  # noqa: ARG002
        disk = simulated(node.broker.disk)
        if disk is None or not node.ready:
            return
        for log in touched:
            if log.is_offline or log.quarantine is not None or not log.bases:
                continue
            key = node.broker.node_id, log.directory
            known = self._logs.get(key)
            if known is None or known.log is not log:
                known = self._logs[key] = _Claims(log, cleaned_offset=log.cleaned_offset)
            for wrong in self._judge(disk, log, known):
                self.violated(at_us, f"{log.directory} on node {node.broker.node_id}: {wrong}")

    def _judge(self, disk: SimDisk, log: UnifiedLog, known: _Claims) -> Sequence[str]:
        wrong = []
        if log.durability.last_cut != known.cuts:
            known.cuts, known.scanned = log.durability.last_cut, ("", 0, 0)
        for name in CLAIMS:
            path = f"{log.directory}/{name}"
            if not disk.exists(path):
                known.of_files.pop(name, None)
                continue
            claim = offset_in({name: disk.read(path, 0, disk.size(path))}, name)
            if claim > log.log_end_offset:
                wrong.append(f"{name} says that records up to {claim} are durable, and it ends at {log.log_end_offset}")
            elif claim > known.of_files.get(name, 0):
                self.evidence += 1
                end = _durable_end(disk, log, known, claim)
                if end < claim:
                    wrong.append(f"{name} says that records up to {claim} are durable, which they are up to {end}")
            known.of_files[name] = claim
        if log.cleaned_offset > known.cleaned_offset:
            self.evidence += 1
            end = _durable_end(disk, log, known, log.cleaned_offset)
            if end < log.cleaned_offset:
                wrong.append(f"it was cleaned up to {log.cleaned_offset}, and is durable up to {end}")
        known.cleaned_offset = log.cleaned_offset
        return wrong


def _durable_end(disk: SimDisk, log: UnifiedLog, known: _Claims, claim: int) -> int:
    """Return ``claim``, or where the first record below it begins that a power loss may take."""
    bases = [int(name[: -len(RECORDS)]) for name in disk.list(log.directory) if _HAS_RECORDS(name)]
    for base, next_base in pairwise([*sorted(each for each in bases if each < claim), claim]):
        path = f"{log.directory}/{base:020}{RECORDS}"
        # A segment that the cleaner has put in place may have its earlier name after a power loss, which a start knows.
        if disk.survives(path):
            continue
        size = disk.durable_size(path)
        if size is None:
            return base
        if size < disk.size(path):
            end = max(_scanned_end(disk, known, path, size), base)
            if end < next_base:
                return end
    return claim


def _scanned_end(disk: SimDisk, known: _Claims, path: str, size: int) -> int:
    """Return the end of the batches in the durable part of a file, of which an earlier call may have scanned the
    first."""
    scanned, position, end = known.scanned
    if scanned != path or position > size:
        position = end = 0
    for batch, data in batches_of(disk.read(path, position, size - position)):
        position += len(data)
        end = batch.last_offset + 1
    known.scanned = path, position, end
    return end


class CleanShutdownHonest(Check):
    """log-consistent: a node has the mark of a clean shutdown only while all its logs are durable and unchanged (P-3,
    E-4).

    A node that serves, or one of whose logs has grown, must have removed the mark for good: no power loss may bring it
    back. It writes the mark only when each of its logs is durable up to its end.
    """

    guarantee = "log-consistent"
    inspection = Inspection.AFTER_EVENTS

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._judged: dict[int, tuple[int, bool]] = {}
        """by node: its last incarnation that served, and whether it has stopped"""
        self._ends: dict[tuple[int, str], tuple[UnifiedLog, int]] = {}
        """by node and directory: a log of a starting node, and its end when it was first seen"""
        context.replicas.on_logs_touched.append(self.logs_touched)

    def logs_touched(self, at_us: int, node: "Node", touched: Sequence[UnifiedLog], thorough: bool) -> None:  # noqa: ARG002
        if node.ready:
            return
        for log in touched:
            key, end = (node.broker.node_id, log.directory), log.log_end_offset
            known, first = self._ends.get(key, (None, 0))
            if known is not log:
                self._ends[key] = log, end
            elif end > first and not node.stopped:
                self._ends[key] = log, end
                self._serves(at_us, node)

    def inspect(self, at_us: int, incarnation: int, node: "Node", event: Event | None, thorough: bool) -> None:  # noqa: ARG002
        node_id = node.broker.node_id
        served, has_stopped = self._judged.get(node_id, (-1, False))
        if served != incarnation:
            if node.ready:
                self._judged[node_id] = incarnation, False
                self._serves(at_us, node)
        elif node.stopped and not has_stopped:
            self._judged[node_id] = incarnation, True
            self._stopped(at_us, node)

    def _serves(self, at_us: int, node: "Node") -> None:
        disk = simulated(node.broker.disk)
        if disk is not None:
            self.evidence += 1
            if disk.exists(CLEAN_SHUTDOWN) or disk.may_return(CLEAN_SHUTDOWN):
                self.violated(
                    at_us, f"node {node.broker.node_id} serves, and may still have the mark of a clean shutdown"
                )

    def _stopped(self, at_us: int, node: "Node") -> None:
        disk = simulated(node.broker.disk)
        if disk is None or not disk.exists(CLEAN_SHUTDOWN):
            return
        for log in node.logs():
            self.evidence += 1
            with WatchedDisk.unwatched():
                end = _durable_end(disk, log, _Claims(log), log.log_end_offset) if log.bases else log.log_end_offset
            if end < log.log_end_offset:
                self.violated(
                    at_us,
                    f"node {node.broker.node_id} has marked a clean shutdown, and {log.directory} is durable up to "
                    f"{end}, and ends at {log.log_end_offset}",
                )
