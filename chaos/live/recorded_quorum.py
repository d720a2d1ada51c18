"""The guarantees of the quorum in a live run, judged from the states that all nodes recorded.

No process sees all nodes, so the checks of the quorum (``chaos/checks``) cannot run inside a node. Each node records
its states (``node_side.quorum_recorder``), and after the run they are played back here, in the order of the machine's
monotonic clock, which all nodes share. Only checks with ``judges_recordings`` run: the others need more than a recorded
state contains.

The time of an event is taken before the node handles it, and the node sends nothing before the state is recorded. A
state that results from another node's message therefore has a later time than the state in which the message was sent.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import msgspec

from chaos.checks.check import Check, CheckContext, Settings
from chaos.checks.fault_times import FaultTimes
from chaos.checks.log.batches import BatchIdentity
from chaos.checks.quorum.quorum_view import GROWTH, Member, QuorumView
from chaos.checks.replication.replica_view import ReplicaView
from chaos.checks.suite import check_kinds
from chaos.live.errors import CONVERGES
from chaos.live.node_side.quorum_recorder import ROW, RecordedState
from reports.manifest import CheckResult
from reports.rows import TraceRow

CONVERGES_LIMIT_US: Final = 30_000_000
"""Nodes that do not agree within this time after the heal violate quorum-converges. If a run without agreement ends
earlier, the guarantee is not judged, because the machine may just have been busy."""
_READ: Final = msgspec.json.Decoder(RecordedState)


def recorded_kinds(guarantees: Collection[str]) -> tuple[type[Check], ...]:
    """Return the checks of these guarantees that can judge recorded states."""
    return tuple(kind for kind in check_kinds() if kind.judges_recordings and kind.guarantee in guarantees)


def is_recorded(guarantees: Collection[str]) -> bool:
    """Return whether nodes must record their states for these guarantees."""
    return CONVERGES in guarantees or bool(recorded_kinds(guarantees))


class RecordedQuorumView(QuorumView):
    """The view of a quorum whose states come from recordings."""

    def play(self, at_us: int, node_id: int, state: RecordedState) -> None:
        """Apply a node's next state. Its member has a stand-in for the replica, with the attributes that checks
        read."""
        member, before = self.nodes[node_id], self.nodes[node_id].seen
        member.seen = after = state.seen
        if state.appended:
            while member.batches and next(reversed(member.batches)) >= state.appended[0].base_offset:
                member.batches.popitem()
            member.batches.update((batch.base_offset, batch) for batch in state.appended)
            for appended in self.on_appended:
                appended(at_us, member, state.appended)
        if after[:GROWTH] != before[:GROWTH]:
            for changed in self.on_changed:
                changed(at_us, member, before, after)
        if after.high_watermark > self.committed_end:
            self._commit(at_us, member, after.high_watermark)

    def _commit(self, at_us: int, member: Member, high_watermark: int) -> None:  # noqa: ARG002
        offset, fresh = max(self.committed_end, member.seen.start_offset), list[BatchIdentity]()
        for batch in reversed(member.batches.values()):
            if batch.base_offset < offset:
                break
            if batch.last_offset < high_watermark:
                fresh.append(batch)
        self.committed.update((batch.base_offset, batch) for batch in reversed(fresh))
        self.committed_end = high_watermark


@dataclass(slots=True)
class RecordedQuorum:
    """The states of all nodes of one run, played back for the checks of its guarantees."""

    guarantees: Collection[str]
    voters: int
    observers: int
    healed_us: int
    """when all faults were over"""
    replaced_directories: Collection[int] = ()
    """nodes that a fault gave another directory"""
    states: int = 0
    agreed: bool = False
    """whether all nodes followed one leader at some time after the heal, and had all that was committed by then"""
    _committed_at_heal: int = -1
    _incarnations: dict[int, int] = field(default_factory=dict)
    _view: RecordedQuorumView = field(init=False)
    _checks: Sequence[Check] = field(init=False)

    def __post_init__(self) -> None:
        self._view = RecordedQuorumView(self.voters, self.observers, FaultTimes())
        context = CheckContext(Settings(), self._view, ReplicaView(self._view.fault_times))
        self._checks = [kind(context) for kind in recorded_kinds(self.guarantees)]

    def play(self, rows: Iterable[TraceRow], end_us: int) -> None:
        """Play the rows of all nodes back, up to the time at which the nodes were ended."""
        for (at_us, node_id), of_event in groupby(_in_order(rows), key=lambda timed: (timed[0], timed[1].node)):
            if at_us > end_us:
                break
            if at_us >= self.healed_us and self._committed_at_heal < 0:
                self._committed_at_heal = self._view.committed_end
            self._play_event(at_us, node_id, [row for _, row in of_event])
            self.agreed = self.agreed or (at_us >= self.healed_us and self._agree())
        if self._committed_at_heal < 0:  # Nothing has changed since then.
            self._committed_at_heal = self._view.committed_end
            self.agreed = self._agree()

    def _play_event(self, at_us: int, node_id: int, rows: Sequence[TraceRow]) -> None:
        """Play the results of one event of a node. As in the simulator, checks get its rows before its state."""
        states = [_READ.decode(row.detail) for row in rows if row.what == ROW]
        if rows[0].incarnation != self._incarnations.get(node_id, 0):
            self._incarnations[node_id] = rows[0].incarnation
            self._view.gone(node_id)
            if node_id in self.replaced_directories:
                self._view.fault_times.directory(node_id)
        if states:
            self.states += len(states)
            self._view.nodes[node_id].replica = _stand_in(states[-1])
        for row in rows:
            for check in self._checks:
                if row.what in check.rows:
                    check.trace(row)
        for state in states:
            self._view.play(at_us, node_id, state)

    def _agree(self) -> bool:
        """Return whether all nodes follow one leader and have published what was committed at the heal. A live cluster
        continues to commit until it ends. That nodes publish the same content is judged by snapshot-equals-replay."""
        first, end = self._view.nodes[0].seen, self._committed_at_heal
        return first.leader_id >= 0 and all(
            (member.seen.epoch, member.seen.leader_id) == (first.epoch, first.leader_id)
            and member.seen.high_watermark >= end
            and (member.replica is not None and member.replica.loader.last_offset + 1 >= end)
            for member in self._view.nodes
        )

    def judged(self, end_us: int) -> tuple[CheckResult, ...]:
        """Return one entry of the manifest for each guarantee that was judged."""
        if not self.states:
            return ()
        by_guarantee: dict[str, list[Check]] = {}
        for check in self._checks:
            by_guarantee.setdefault(check.guarantee, []).append(check)
        results = [self._result(name, checks) for name, checks in by_guarantee.items()]
        return (*results, *self._convergence(end_us))

    def _result(self, guarantee: str, checks: Sequence[Check]) -> CheckResult:
        first = min((one for check in checks for one in check.violations), key=lambda one: one.at_us, default=None)
        if first is None:
            return CheckResult(guarantee=guarantee, holds=True, evidence=self.states)
        return CheckResult(
            guarantee=guarantee, holds=False, evidence=self.states, at_us=first.at_us, detail=first.explanation
        )

    def _convergence(self, end_us: int) -> Iterator[CheckResult]:
        if CONVERGES not in self.guarantees:
            return
        if self.agreed:
            yield CheckResult(guarantee=CONVERGES, holds=True, evidence=1)
        elif end_us - self.healed_us > CONVERGES_LIMIT_US:
            states = "; ".join(f"node {member.node_id}: {member.seen}" for member in self._view.nodes)
            explanation = (
                f"the nodes did not agree within {(end_us - self.healed_us) // 1_000_000} s of the heal: {states}"
            )
            yield CheckResult(guarantee=CONVERGES, holds=False, evidence=1, at_us=end_us, detail=explanation)


def _stand_in(state: RecordedState) -> Any:
    """Return a stand-in for a node's replica of the metadata log, with the attributes that checks read, as of the end
    of the event."""
    return SimpleNamespace(
        quorum=SimpleNamespace(is_leader=state.seen.leads),
        store=SimpleNamespace(ids=state.snapshots),
        log=SimpleNamespace(start_offset=state.seen.start_offset),
        loader=SimpleNamespace(last_offset=state.loaded),
    )


def _in_order(rows: Iterable[TraceRow]) -> list[tuple[int, TraceRow]]:
    """Return the rows with the times of their events, ordered by them.

    A published image's row has the time at which it was written, and comes before the other rows of its event. So a
    row's event began no later than any row that the process wrote after it.
    """
    processes: dict[tuple[int, int], list[TraceRow]] = {}
    for row in rows:
        processes.setdefault((row.node, row.incarnation), []).append(row)
    timed: list[tuple[int, TraceRow]] = []
    for of_process in processes.values():
        at_us = 1 << 62
        for row in sorted(of_process, key=lambda row: -row.seq):
            at_us = min(at_us, row.at_us)
            timed.append((at_us, row))
    return sorted(timed, key=lambda pair: (pair[0], pair[1].node, pair[1].incarnation, pair[1].seq))


def recorded_rows(run_folder: Path, guarantees: Collection[str]) -> list[TraceRow]:
    """Read the rows of all nodes' traces that the checks need."""
    import pyarrow.parquet as pq

    wanted = [ROW, *{name for kind in recorded_kinds(guarantees) for name in kind.rows}]
    return [
        TraceRow(**values)
        for file in sorted((run_folder / "trace").glob("node-*.parquet"))
        for values in pq.read_table(file, filters=[("what", "in", wanted)]).to_pylist()
    ]
